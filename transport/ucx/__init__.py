"""The scheme ``ucx``: the protocol over UCX, as a plain UCP program speaks it.

``ucx://host:port`` is a UCX listener. Requests, freed offsets and bodies are tagged messages with
the tags of the protocol. Metadata messages are active messages with ID 0 and no header. There is
no preface and no framing. UCX matches tags per worker, not per endpoint, so every connection has
its own worker on both sides.

The scheme needs the extra ``ucx``: the library itself (``libucx-cu12``, which also runs without a
GPU) and ``cffi``.
"""

from __future__ import annotations

from .transport import TRANSPORT, UcxTransport

__all__ = ["TRANSPORT", "UcxTransport"]
