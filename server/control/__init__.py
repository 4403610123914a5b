"""The control plane: a Flight service over gRPC that says where data is, and falls back to DoGet.

Importing this package imports no gRPC; its modules do.
"""
