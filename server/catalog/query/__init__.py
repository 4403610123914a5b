"""Queries: the part of a dataset that a request selects.

`request_checks` checks the version and the shard of a request. `selection` resolves its columns,
offset, limit, batch size and compression against the dataset's schema. `filters` evaluates its
filter. A `Selection` is valid once resolved, and the packages above only apply it.
"""
