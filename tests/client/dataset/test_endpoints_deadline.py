"""A read of a server that stops sending ends in time, over all of its attempts."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

import splitarrow
from helpers.proxy import proxy
from splitarrow.client.arguments import ReadPlan, StreamOptions
from splitarrow.client.dataset import endpoints
from splitarrow.client.dataset.endpoints import Replica, ResumableEndpoint
from splitarrow.errors import TransportError
from splitarrow.protocol.request import Request
from splitarrow.protocol.uri import DataUri

TABLE = pa.table({"n": pa.array(np.arange(4_000_000))})


def test_a_read_gives_up_soon_after_stall_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "RETRY_SECONDS", 0.3)
    batches = TABLE.to_batches(max_chunksize=10_000)
    server = splitarrow.serve({"n": batches}, control="grpc://127.0.0.1:0")
    options = StreamOptions(stall_timeout=0.3, prefetch_bytes=0)
    with server, splitarrow.connect(server.control_uri or "") as client:
        location = DataUri.parse(server.uri("n", scheme="tcp"))
        with proxy(location.port or 0) as link:
            moved = (str(location.replace(port=link.port, ticket=None)),)

            def describe(request: Request) -> splitarrow.DatasetInfo:
                info = client.describe(request)
                return replace(
                    info, endpoints=tuple(replace(each, locations=moved) for each in info.endpoints)
                )

            info = describe(Request("n"))
            replica = Replica(
                client.channel, describe, Request("n"), info.version, None, info.endpoints[0]
            )
            endpoint = ResumableEndpoint([replica], "n", ReadPlan(options))
            assert endpoint.next() is not None
            link.is_silent = True
            started = time.monotonic()

            def read_rest() -> None:
                nonlocal started
                while endpoint.next() is not None:  # what the kernel has received already
                    started = time.monotonic()

            with pytest.raises(TransportError, match=r"gave up after \d s without data") as caught:
                read_rest()
            assert 0.3 < time.monotonic() - started < 1.5
            endpoint.close()
            assert str(link.port) in str(caught.value)
