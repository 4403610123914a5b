"""The control plane: a Flight service over gRPC that returns locations of data, or the data itself.

Importing this package does not import gRPC. Its modules do.
"""
