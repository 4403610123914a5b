"""The format of frames on byte streams (TCP and Unix sockets).

A connection begins with 8 bytes in each direction: ``SPLTARW`` and a version byte. Frames follow::

    u8 kind (0 untagged, 1 tagged) | u8 0 | u16 0 | u32 0 | u64 length | u64 tag | payload

All numbers are little-endian. The tag of an untagged frame is 0.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

import numpy as np

from ..errors import LimitError
from ..protocol.frames import OutgoingFrame, UntaggedFrame
from ..protocol.limits import Limits
from ..protocol.messages import PREFIX, FrameRun
from ..protocol.tags import pack_body_tag

PREFACE = b"SPLTARW\x01"
HEADER = struct.Struct("<QQQ")
UNTAGGED, TAGGED = 0, 1
"""The first word of a header: the kind of the frame and seven bytes that are 0."""
_SEQUENCE = struct.Struct("<I")
_TAG = struct.Struct("<Q")
_BEFORE_TAG = 16
"""The size of a header in front of its tag, in bytes."""
_MAX_JOINED_BYTES = 1 << 10
"""The largest body in one `bytes` object that is copied behind its header. Most such bodies are of
type 1."""
_MAX_COPIED_BYTES = 16 << 10
"""The largest body of a run that is copied. Larger ones are sent from where they are."""


def check_metadata_size(nbytes: int, limits: Limits) -> None:
    """Raise `LimitError` if a metadata message exceeds ``limits.metadata_bytes``."""
    if nbytes > limits.metadata_bytes:
        raise LimitError(
            f"an untagged frame has {nbytes} bytes; the limit is {limits.metadata_bytes} bytes"
        )


def check_body_size(nbytes: int, limits: Limits, tag: int) -> None:
    """Raise `LimitError` if a body exceeds ``limits.body_bytes``."""
    if nbytes > limits.body_bytes:
        raise LimitError(
            f"a tagged frame has {nbytes} bytes; the limit is {limits.body_bytes} bytes", tag=tag
        )


def encode_frames(frames: Iterable[OutgoingFrame]) -> list[Any]:
    """Return the bytes of frames on the wire, as a list of buffers.

    Adjacent headers, metadata messages and short bodies are joined. The list contains the buffers
    of other bodies without a copy. The small bodies of a run are copied.
    """
    if isinstance(frames, FrameRun):
        return _encode_run(frames)
    pack = HEADER.pack
    buffers: list[Any] = []
    joined: list[bytes] = []
    for frame in frames:
        if isinstance(frame, UntaggedFrame):
            joined.append(pack(UNTAGGED, len(frame.payload), 0))
            joined.append(frame.payload)
        else:
            tag, nbytes, body = frame
            joined.append(pack(TAGGED, nbytes, tag))
            if nbytes <= _MAX_JOINED_BYTES and len(body) == 1 and type(body[0]) is bytes:
                joined.append(body[0])
            elif nbytes:
                buffers.append(b"".join(joined))
                joined.clear()
                buffers.extend(body)
    if joined:
        buffers.append(b"".join(joined))
    return buffers


def _encode_run(run: FrameRun) -> list[Any]:
    """Return the bytes of the frames of a run, as a list of buffers."""
    count, nbytes = run.bodies.shape
    head = HEADER.pack(UNTAGGED, PREFIX.size + len(run.metadata), 0) + bytes((run.message_type,))
    between = run.metadata + HEADER.pack(TAGGED, nbytes, 0)[:_BEFORE_TAG]
    if nbytes > _MAX_COPIED_BYTES:
        return _gather_run(run, head, between)
    layout = np.dtype(
        [
            ("head", np.uint8, len(head)),
            ("sequence", "<u4"),
            ("between", np.uint8, len(between)),
            ("tag", "<u8"),
            ("body", np.uint8, nbytes),
        ]
    )
    encoded = np.empty(count, layout)
    encoded["head"] = np.frombuffer(head, np.uint8)
    encoded["between"] = np.frombuffer(between, np.uint8)
    sequences = np.arange(run.sequence, run.sequence + count, dtype=np.uint64)
    encoded["sequence"] = sequences
    encoded["tag"] = sequences | np.uint64(pack_body_tag(0, run.body_type))
    encoded["body"] = run.bodies
    return [memoryview(encoded.view(np.uint8).data)]


def _gather_run(run: FrameRun, head: bytes, between: bytes) -> list[Any]:
    """Return the bytes of the frames of a run; the buffers of its bodies are not copied."""
    buffers: list[Any] = []
    tag = pack_body_tag(run.sequence, run.body_type)
    for sequence, body in enumerate(run.bodies, run.sequence):
        buffers.append(b"".join((head, _SEQUENCE.pack(sequence), between, _TAG.pack(tag))))
        buffers.append(body.data)
        tag += 1
    return buffers
