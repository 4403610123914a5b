"""Frame decoders fed from bytes."""

from __future__ import annotations

from splitarrow.protocol.frames import IncomingFrame, UntaggedFrame
from splitarrow.protocol.messages import expand_frames
from splitarrow.transport.frame_decoder import FrameDecoder


def push(decoder: FrameDecoder, data: bytes, most: int = 1 << 62) -> None:
    """Feed bytes to a decoder like a socket, at most `most` bytes in one read."""
    view = memoryview(data)
    while view.nbytes:
        count, chunk = 0, view[:most]
        for target in decoder.targets():
            part = chunk[count : count + target.nbytes]
            target[: part.nbytes] = part
            count += part.nbytes
        assert count, "there is no room to receive into"
        view = view[count:]
        decoder.advance(count)


def plain(frames: list[IncomingFrame]) -> list[tuple[int | None, bytes]]:
    return [
        (None, frame.payload)
        if isinstance(frame, UntaggedFrame)
        else (frame.tag, bytes(frame.body))
        for frame in expand_frames(frames)
    ]
