"""The regions of shared memory that a server offers to its readers.

A dataset whose file holds bodies uncompressed and unchanged needs no copy: its file is the
region, and the page cache is the shared memory. A file guard reports when another process is
about to write to it. Any other dataset is written once into sealed memory, which all its readers
share.

`SharedRegions` is the entry point. It owns everything here; a server has one.
"""
