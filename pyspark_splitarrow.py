"""What PySpark imports to find the data source ``splitarrow``; it looks for this very name."""

from splitarrow.pipeline.datasource import SplitArrowDataSource as DefaultSource  # noqa: TID251

__all__ = ["DefaultSource"]
