"""Variant values (Parquet: Variant Binary Encoding, Variant Shredding), by columns of Arrow."""
