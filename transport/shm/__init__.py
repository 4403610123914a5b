"""The scheme ``shm``: readers on this host map the memory that the server's data lies in.

A Unix socket carries the frames. Bodies are of type 1: they say where the buffers lie in a
region, whose descriptor the server hands over first. Nothing is copied, and nothing has a name
in ``/dev/shm``.
"""

from .transport import TRANSPORT, ShmTransport

__all__ = ["TRANSPORT", "ShmTransport"]
