"""The options of a connection over UCX."""

from __future__ import annotations

import pytest

from splitarrow.errors import UriError
from splitarrow.protocol.uri import DataUri
from splitarrow.transport.ucx.uri import UcxOptions

URI = DataUri("ucx", "host", 1, want_data=0x1_0000_0001)


@pytest.mark.parametrize(
    ("query", "body", "busy_poll"),
    [
        ({}, None, 0.0),
        ({"body": "packed"}, "packed", 0.0),
        ({"body": "remote", "busy_poll": "200"}, "remote", 2e-4),
        ({"busy_poll": "0"}, None, 0.0),
        ({"busy_poll": "1000000"}, None, 1.0),
    ],
)
def test_the_options_of_a_uri(query: dict[str, str], body: str | None, busy_poll: float) -> None:
    options = UcxOptions.from_uri(URI.replace(extra=tuple(query.items())))
    assert (options.body, options.busy_poll) == (body, busy_poll)


@pytest.mark.parametrize("value", ["", "-1", "1.5", "1000001", "٣"])
def test_busy_polling_is_bounded(value: str) -> None:
    with pytest.raises(UriError, match="busy_poll="):
        UcxOptions.from_uri(URI.replace(extra=(("busy_poll", value),)))
