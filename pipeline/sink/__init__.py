"""The sink: writing shards in the tasks, and committing them on the driver."""
