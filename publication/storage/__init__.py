"""Storage of published datasets: local folders and object stores.

`base` defines the operations that a storage offers. `local` implements them for a folder, and
`object_store` for a prefix in S3, Google Cloud Storage or Azure. `locations.open_storage` returns
the right one for a path or a URL.

Crash safety rests on one operation: `Storage.create` makes a complete file under a name that does
not exist yet, or fails. Of several concurrent callers, exactly one succeeds.
"""
