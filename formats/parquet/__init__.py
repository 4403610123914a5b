"""Parquet: what pyarrow hides or gets wrong, read from footers, and corrections of arrays.

- `footer` reads and replaces the schema of a file (`schema`, `logical_types`, `thrift`).
- `columns` plans the types of columns in Arrow, and the conversions of their arrays.
- `int96_interval` converts INT96 timestamps, and INTERVAL values in both directions.
- `conversions` corrects schemas before pyarrow gets them, and arrays of lists, maps and structs.
- `write_plan` writes the annotations that pyarrow cannot write.
- `variant_columns` and `variant` are for VARIANT, `geo` for GEOMETRY and GEOGRAPHY.
"""
