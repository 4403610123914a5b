"""What the fuzzer attacks. A target takes bytes from anybody, and raises if they do harm."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

import grpc
import pyarrow as pa
from pyarrow import flight

import splitarrow
from helpers.control_plane import bearer, put
from splitarrow.errors import DeniedError, InvalidRequestError
from splitarrow.proto import Flight_pb2 as messages
from splitarrow.protocol.request import SIGNED_PREFIX, Request
from splitarrow.protocol.uri import Streams
from splitarrow.server.auth.tickets import (
    ReplayCache,
    TicketSigner,
    _compute_mac,
    _encode_base64,
)

Attack = Callable[[bytes], None]

TOKEN = "token-of-the-fuzzer"
_TOKENS = f"""
[[tokens]]
name = "fuzzer"
token = "{TOKEN}"
datasets = ["*"]
write = ["*"]
"""
KEY = bytes(range(32))
"""The key of the tickets."""


class Watch(logging.Handler):
    """Keeps what a server logs as an error: an exception that nobody expected."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self._records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self._records.append(record)

    def check(self) -> None:
        if self._records:
            record = self._records.pop()
            self._records.clear()
            error = record.exc_info[1] if record.exc_info else None
            raise AssertionError(f"the server failed: {record.getMessage()}") from error


@contextmanager
def _watch() -> Generator[Watch]:
    watch = Watch()
    loggers = [logging.getLogger(name) for name in ("splitarrow", "asyncio")]
    for logger in loggers:
        logger.addHandler(watch)
    try:
        yield watch
        watch.check()
    finally:
        for logger in loggers:
            logger.removeHandler(watch)


@contextmanager
def _serve(**settings: Any) -> Generator[splitarrow.Server]:
    """Serve a table to the bearer of the token, who may also upload into a folder."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "tokens.toml").write_text(_TOKENS)
        (folder / "tokens.toml").chmod(0o600)
        (folder / "uploads").mkdir()
        server = splitarrow.serve(
            {"t": pa.table({"a": [1, 2, 3], "b": ["x", None, "z"]})},
            listen=["tcp://127.0.0.1:0"],
            control="grpc://127.0.0.1:0",
            writable=folder / "uploads",
            token_file=folder / "tokens.toml",
            **settings,
        )
        with server:
            yield server


@contextmanager
def attack_tickets() -> Generator[Attack]:
    """Redeem bytes as a ticket, as the contents of a signed ticket, and as an unsigned one."""

    def attack(data: bytes) -> None:
        signer = TicketSigner([KEY], used=ReplayCache(1))
        try:
            signed = SIGNED_PREFIX + _encode_base64(data)
            for ticket in (data, signed + b"." + _compute_mac(KEY, signed)):
                with suppress(DeniedError):
                    claims = signer.redeem(ticket, Streams.BOTH)
                    with suppress(DeniedError):
                        signer.redeem(ticket, Streams.BODY)
                        raise AssertionError(f"a ticket was good for two reads: {claims}")
            with suppress(InvalidRequestError):
                request = Request.parse(data)
                assert Request.parse(request.ticket()) == request
                ticket = signer.sign(request, "fuzzer")
                assert TicketSigner([KEY]).redeem(ticket, Streams.BOTH).request == request
        finally:
            signer.close()

    yield attack


ACTIONS = (
    "status",
    "hold",
    "count",
    "ranges",
    "cancel",
    "renew",
    "drop",
    "publish",
    "discard",
    "reload",
    "CancelFlightInfo",
    "RenewFlightEndpoint",
    "lengths",
    "announce",
    "manifest",
    "relay",
    "identity",
    "pin",
    "versions",
)
"""All actions. The corpus has their positions, so a new one is the last."""
_DO_ACTION = "/arrow.flight.protocol.FlightService/DoAction"
_FAILURES = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)


@contextmanager
def attack_actions() -> Generator[Attack]:
    """Send the bytes behind the first as the body of the action that it selects, or as a call."""
    headers = [("authorization", f"Bearer {TOKEN}")]
    with _watch() as watch, _serve() as server:
        assert server.control_uri is not None
        address = server.control_uri.removeprefix("grpc://")
        client: Any = flight.FlightClient(server.control_uri)

        def upload() -> None:
            put(client, "u", pa.table({"a": [1]}), bearer(TOKEN))

        upload()
        with client, grpc.insecure_channel(address) as channel:
            call: Any = channel.unary_stream(_DO_ACTION)

            def attack(data: bytes) -> None:
                number, body = data[:1], data[1:]
                action = ACTIONS[number[0]] if number and number[0] < len(ACTIONS) else None
                if action is not None:
                    body = messages.Action(type=action, body=body).SerializeToString()
                try:
                    list(call(body, metadata=headers, timeout=0.05 if action == "hold" else 20))
                except grpc.RpcError as error:
                    status: Any = error
                    assert status.code() not in _FAILURES, status.details()
                    if status.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                        assert action in (None, "hold"), f"{action} takes over 20 s"
                else:
                    if action == "drop":
                        upload()
                watch.check()

            yield attack


_LAST_REQUEST = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
_QUIET_SECONDS = 0.05
"""How long the listener may be silent before it is taken to wait for the rest of a request."""


@contextmanager
def attack_http() -> Generator[Attack]:
    """Send bytes to the HTTP listener, and a request behind them that closes the connection."""
    with _watch() as watch, _serve(http="http://127.0.0.1:0") as server:
        address = urlsplit(server.http_uri or "")
        assert address.hostname is not None

        def attack(data: bytes) -> None:
            data = data.replace(b"TOKEN", TOKEN.encode())
            with socket.create_connection((address.hostname, address.port), timeout=20) as peer:
                answer = bytearray()
                with suppress(ConnectionError):
                    peer.sendall(data + _LAST_REQUEST)
                    peer.settimeout(_QUIET_SECONDS)
                    with suppress(TimeoutError):
                        while received := peer.recv(1 << 16):
                            answer += received
            assert not answer.startswith(b"HTTP/1.1 5"), bytes(answer[:200])
            watch.check()

        yield attack


TARGETS = {"actions": attack_actions, "http": attack_http, "tickets": attack_tickets}
