"""Published datasets: their versions, manifests and shards, and the storage that holds them.

A published dataset is a local folder or a prefix in an object store. A *version* of it is one
*manifest*: a JSON file that lists *shards*, which are Arrow IPC files. Manifests and shards never
change once they exist, so a reader keeps the version that it started with.

A job publishes a version in three steps: it writes shards into a staging folder, moves them to
their final names, and creates the manifest. Only the last step makes the version visible, and
only one writer can create the manifest of a given version. `VersionStore` is the entry point:

- `staging` writes shards and moves them to their final names.
- `commit` creates the manifest.
- `manifest_store` reads versions.
- `locks` and `retention` remove versions that no reader uses.
- `layout` names the files, and `storage` reads and writes them.
- `column_ranges` and `shard_pruning` skip shards that cannot match a filter.
"""
