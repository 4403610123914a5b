"""How the bodies of a data stream reach its reader.

The request's tag selects the body type. Packed bodies travel through the connection. Remote
bodies stay in a region of the server's memory: the reader gets their offsets and either maps the
region or reads it remotely. A session drives a `BodySender` the same way for both.
"""

from __future__ import annotations

from .connection import BodySender, Connection, ConnectionLeases, FrameWriter
from .packed import PackedBodySender
from .remote import RemoteBodySender

__all__ = [
    "BodySender",
    "Connection",
    "ConnectionLeases",
    "FrameWriter",
    "PackedBodySender",
    "RemoteBodySender",
]
