"""Datasets made of files: Arrow IPC, Feather and Parquet, alone or in a directory.

`file_types.open_file` detects the type of a file and returns its `FileDataset`. A file dataset
inspects the file once, and again when the file changes. `directory` makes one dataset of the files
in a directory, `concatenated` reads several files in order, and `hive` adds the partition columns
that the folder names define.

No file stays open between readers, and no reader gets a mixture of two states of a file: a file
that changes while it is read fails the stream.
"""
