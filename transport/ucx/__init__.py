"""The scheme ``ucx``: the protocol over UCX, as a plain UCP program speaks it.

``ucx://host:port`` is a UCX listener. Requests, returned leases and bodies are tagged messages
with the very tags of the protocol; metadata messages are active messages with id 0 and without
a header. There is no preface and no framing. UCX matches tags for each worker, not for each
endpoint: so each connection has a worker of its own, on both sides.

It needs the extra ``ucx``: the library itself (``libucx-cu12``, which runs without a GPU) and
``cffi``.
"""

from __future__ import annotations

from .scheme import TRANSPORT, UcxTransport

__all__ = ["TRANSPORT", "UcxTransport"]
