"""The control plane: a Flight service over gRPC that returns locations of data, or the data itself.

It serves HTTP/2 itself, with h2, and needs no gRPC.
"""
