"""Parquet: what pyarrow hides or gets wrong, read from footers, and corrections of arrays."""
