"""Reads that take longer than their tickets and their tokens."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import splitarrow
from helpers.access_tokens import TokenIssuer
from helpers.daemons import StartDaemon
from helpers.files import write_file, write_shards
from helpers.relays import find_addresses
from helpers.waiting import wait_until
from splitarrow.errors import DeniedError
from splitarrow.testing import Daemon

CONTROL = "grpc://127.0.0.1:0"
SHARDS = 5
STEP_SECONDS = 1.5


@pytest.fixture
def issuer(tmp_path: Path) -> TokenIssuer:
    return TokenIssuer(tmp_path)


@pytest.fixture
def server(issuer: TokenIssuer, tmp_path: Path, daemon: StartDaemon) -> Daemon:
    """A daemon whose tickets expire after two seconds, with a dataset of several shards."""
    (tmp_path / "d").mkdir()
    write_shards(tmp_path / "d", [pa.table({"n": [shard]}) for shard in range(SHARDS)])
    settings = issuer.settings(listen=["tcp://127.0.0.1:0"], ticket_seconds=2.0)
    return daemon({"d": tmp_path / "d"}, control=CONTROL, **settings)


def read_slowly(stream: Any) -> list[int]:
    """Return the numbers of a stream; read the next one after `STEP_SECONDS` each time."""
    found: list[int] = []
    due = time.monotonic()
    for batch in stream:
        found += batch["n"].to_pylist()
        due += STEP_SECONDS
        wait_until(lambda due=due: time.monotonic() >= due)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["tcp", "flight"])
def test_a_read_that_outlives_its_token_and_tickets_notices_nothing(
    issuer: TokenIssuer, server: Daemon, transport: str
) -> None:
    # A read that resumes would survive a refused ticket as well.
    options: dict[str, Any] = {"parallel": 1, "resume_attempts": 0, "transport": transport}
    with splitarrow.connect(str(server.control_uri), lambda: issuer.issue(2.0)) as client:
        (first, *_) = client.info("d").endpoints
        assert first.expires is not None
        assert 0 < first.expires - time.time() <= 3
        with client.read("d", **options) as stream:
            assert read_slowly(stream) == list(range(SHARDS))
            assert stream.resumed == 0
    assert len(issuer.issued) > 1


@pytest.mark.slow
def test_the_error_states_that_the_token_has_expired(issuer: TokenIssuer, server: Daemon) -> None:
    token = issuer.issue(2.0)
    with splitarrow.open(f"{server.control_uri}/d", token=token, parallel=1) as stream:
        message = r"refuses to continue the read .*: the token has expired, at 2\S+ \S+ UTC; .*file"
        with pytest.raises(DeniedError, match=message) as caught:
            read_slowly(stream)
    assert caught.value.code == "UNAUTHENTICATED"
    assert token not in str(caught.value)


@pytest.mark.slow
def test_a_read_that_resumes_sends_the_current_token(
    issuer: TokenIssuer, tmp_path: Path, daemon: StartDaemon
) -> None:
    control, listen = find_addresses(2)
    listen = listen.replace("grpc:", "tcp:")
    table = pa.table({"n": pa.array(np.arange(4_000_000))})
    path = write_file(tmp_path / "d.arrow", table, batch_rows=100_000)

    def start() -> Daemon:
        return daemon({"d": path}, control=control, **issuer.settings(listen=[listen]))

    first = start()
    (tmp_path / "token").write_text(issuer.issue(2.0))
    expiry = time.time() + 2.0
    options: dict[str, Any] = {"transport": "tcp", "window_bytes": 1 << 20}
    with (
        splitarrow.connect(control, token_file=tmp_path / "token") as client,
        client.read("d", **options) as stream,
    ):
        batches = [next(iter(stream))]
        wait_until(lambda: time.time() > expiry)  # the first token has expired
        (tmp_path / "token").write_text(issuer.issue(60.0))
        first.kill()
        start()
        batches += stream
        assert stream.resumed == 1
    assert pa.Table.from_batches(batches) == table
