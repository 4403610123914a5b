"""The scheme ``shm``: readers on the same host map the memory that holds the data.

A Unix socket carries the frames. Bodies are remote: they list the offsets of their buffers in a
region. The server announces the region first and passes its file descriptor along
(``SCM_RIGHTS``). Nothing is copied, and nothing has a name in ``/dev/shm``.
"""

from __future__ import annotations

from .transport import TRANSPORT, ShmTransport

__all__ = ["TRANSPORT", "ShmTransport"]
