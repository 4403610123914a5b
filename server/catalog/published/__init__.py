"""Published datasets, as a server reads them. `splitarrow.publication` writes them.

A `PublishedDataset` serves the current version, and older versions to readers whose ticket names
one. A `PublishedVersion` never changes. Its reader holds a version lock, so the version is not
pruned while it is read. `shard_reader` reads the shards: from the local folder, or from an
`ObjectCache` of downloaded objects. `version_watcher` notices new versions and prunes old ones.
"""
