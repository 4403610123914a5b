"""The catalog: the datasets of a server, and how a request becomes a stream of messages.

A request passes through these packages, from the top down:

- `catalog` finds the dataset by its name.
- `published` selects a version and its shards.
- `files` and `tables` know where the data is: in a file, a directory or memory.
- `messages` turns it into Arrow messages: passthrough, projection or re-encoding.
  `messages.plan` decides which.
- `query` resolves the request against the schema: columns, filter, offset and limit.
- `dataset` defines the two interfaces that connect all of them: `Dataset` and `Source`.
"""
