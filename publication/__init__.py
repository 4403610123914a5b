"""Published datasets: their versions, manifests and shards, and the storage that holds them.

A published dataset is a local folder or a prefix in an object store. A *version* of it is one
*manifest*: a JSON file that lists *shards*, which are Arrow IPC files. Manifests and shards never
change once they exist, so a reader keeps the version that it started with.

A job publishes a version in three steps: it writes shards into a staging folder, moves them to
their final names, and creates the manifest. Only the last step makes the version visible, and
only one writer can create the manifest of a given version. `VersionStore` is the entry point:

- `version_store` stages shards, commits, reads and prunes versions.
- `manifest` describes a version, and `layout` names the files.
- `locks` keep versions that are being read from being pruned.
- `column_ranges` skips shards that cannot match a filter.
- `storage` reads and writes files, in a local folder or an object store.
"""
