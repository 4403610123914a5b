"""The tags of data requests, and the handles that they derive from."""

from __future__ import annotations

import pytest

from splitarrow.errors import UriError
from splitarrow.protocol.tags import BodyType, is_request_tag
from splitarrow.protocol.uri import DataUri
from splitarrow.transport.ucx.uri import (
    check_handle,
    create_handle,
    find_remote_request_tag,
    find_request_tags,
)

URI = DataUri("ucx", "host", 1, want_data=0x1_0000_0001)


def test_a_handle_yields_a_tag_that_no_body_has() -> None:
    assert find_remote_request_tag(URI) is None
    for want_data in (0x1_0000_0001, (1 << 64) - 1):
        handles = [create_handle(want_data) for _ in range(20)]
        assert len(set(handles)) == 20
        for handle in handles:
            uri = URI.replace(want_data=want_data, remote_handle=handle)
            tag = find_remote_request_tag(uri)
            assert tag is not None
            assert tag == want_data ^ int.from_bytes(handle, "little")
            assert tag >> 48 == 0xFFFF
            assert is_request_tag(tag)
            tags = find_request_tags(uri)
            assert tags.pop(tag) == BodyType.OFFSETS
            assert tags == find_request_tags(uri.replace(remote_handle=None))
    assert find_remote_request_tag(URI.replace(remote_handle=bytes(8), want_data=None)) is None


@pytest.mark.parametrize("size", [0, 7, 9])
def test_a_handle_has_8_bytes(size: int) -> None:
    check_handle(URI)
    check_handle(URI.replace(remote_handle=bytes(8)))
    for function in (check_handle, find_remote_request_tag):
        with pytest.raises(UriError, match=f"remote_handle has {size} bytes"):
            function(URI.replace(remote_handle=bytes(size)))
