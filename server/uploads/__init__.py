"""Uploads: from Flight messages to datasets in the directory of uploads.

A dataset is uploaded as one file, or published shard by shard. Every file goes through these
states:

- *Incomplete*: it has a temporary name and belongs to an `Upload`. If the server dies, the next
  server that uses the directory removes it.
- *Staged* (shards only): it is complete, and waits in the staging folder of its job. It survives a
  restart. Publishing the job commits it; discarding the job or dropping the dataset removes it.
- *Committed*: the catalog serves it. It survives a restart. Replacing or dropping the dataset
  removes it. Running streams continue.

The bytes of files in every state count towards the quota.
"""
