"""The publishing job: rows that Spark can read become datasets that daemons serve.

The driver runs these steps, and Spark runs the row operations in tasks:

1. `inputs` opens the source as a DataFrame.
2. `rows` filters, selects, casts, splits and orders the rows.
3. `destinations` writes each dataset with the sink of this package: to a folder or an object
   store, or to a staging folder, from which the driver uploads the shards to daemons.
"""

from __future__ import annotations

from .job import PublishJob, PublishJobResult
from .run import publish

__all__ = ["PublishJob", "PublishJobResult", "publish"]
