"""Delta tables as datasets.

`log` reads the transaction log through deltalake: the schema, the files and the protocol of a
version. `data_file` reads one Parquet file with the schema of the table. `dataset` serves the
newest version, and older ones on request.
"""
