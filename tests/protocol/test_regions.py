"""Regions of memory, as bodies and as announcements."""

from __future__ import annotations

from typing import Any, cast

from splitarrow.protocol.memory import ReceivedBody
from splitarrow.protocol.regions import Region, RegionAnnouncement, RemoteBody


def test_a_remote_body_has_the_memory_of_its_offsets() -> None:
    body, region = ReceivedBody.copy(b"offsets", 64), cast(Region, object())
    remote = RemoteBody(body, region)
    assert remote.region is region
    assert (remote.start, remote.nbytes, bytes(remote)) == (64, 7, b"offsets")
    assert remote.buffer is body.buffer


def test_an_announcement_counts_the_bytes_of_its_payload() -> None:
    descriptor: Any = object()
    assert RegionAnnouncement(b"abc", (descriptor,)).nbytes == 3
    assert RegionAnnouncement(b"", ()).nbytes == 0
