"""The catalog: the datasets of a server, and how a request becomes a stream of messages.

A request passes through these modules, from the top down:

- `catalog` finds the dataset by its name.
- `published` and `delta` select a version, its shards or its files. `deletion_vectors` and
  `delta_features` interpret the log of a Delta table.
- `files`, `tables`, `tensors` and `device_table` know where the data is: in files or in memory.
- `messages` turns it into Arrow messages: passthrough, projection or re-encoding.
  `messages.plan` decides which. `vortex_encoding` turns these into Vortex arrays.
- `selection` and `filters` resolve the request against the schema: columns, filter, offset, limit.
- `dataset` defines the two interfaces that connect all of them: `ServedDataset` and `Source`.
"""
