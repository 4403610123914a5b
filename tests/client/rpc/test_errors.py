"""Errors of calls: which exception each becomes, and what its message says."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from splitarrow import errors
from splitarrow.client.rpc.errors import convert_grpc_error, restate_error


class Failed(grpc.RpcError):
    """An error as gRPC raises it."""

    def __init__(self, status: str, details: str | None) -> None:
        self.code = lambda: grpc.StatusCode[status]
        self.details = lambda: details


def convert(status: str, details: str | None, **options: Any) -> errors.SplitArrowError:
    error = convert_grpc_error(Failed(status, details), "grpc://h:1", dataset="d", **options)
    assert error.stream == "d"
    return error


LOSSES = [
    *("Socket closed", "Connection reset by peer", "connection timed out", "Broken pipe"),
    *("GOAWAY received", "RST_STREAM", "keepalive watchdog timeout", "recvmsg:x", "sendmsg: x"),
    *("transport closed", "Connection closed", "end of TCP stream", "Stream removed"),
    *("Server shutdown", "Cancelling all calls"),
]


@pytest.mark.parametrize("status", ["UNAVAILABLE", "INTERNAL", "UNKNOWN", "CANCELLED"])
@pytest.mark.parametrize("details", LOSSES)
def test_a_lost_connection_is_not_an_answer_of_the_server(status: str, details: str) -> None:
    error = convert(status, f"ipv4:10.0.0.1:1: {details}")
    assert type(error) is errors.ConnectionLostError
    assert error.message == f"the connection to grpc://h:1 was lost: {details}"


@pytest.mark.parametrize("status", ["UNAVAILABLE", "INTERNAL", "UNKNOWN", "CANCELLED"])
@pytest.mark.parametrize(
    "details",
    [
        *("Failed to connect to all addresses", "errors resolving h", "DNS resolution failed"),
        *("Name resolution failure", "No address added", "handshake: Connection reset"),
    ],
)
def test_a_connection_that_was_never_made_is_a_connect_error(status: str, details: str) -> None:
    error = convert(status, details)
    assert type(error) is errors.ConnectError
    assert error.message.startswith("cannot connect to grpc://h:1: ")


def test_hints_depend_on_whether_the_connection_is_encrypted() -> None:
    failed = Failed("UNAVAILABLE", "failed to connect: socket closed")
    for address, hint in (("grpc+tls://h:1", "client certificate"), ("grpc://h:1", "require TLS")):
        assert hint in str(convert_grpc_error(failed, address))


@pytest.mark.parametrize("details", [*LOSSES, "failed to connect"])
def test_what_a_server_says_is_no_failure_of_the_connection(details: str) -> None:
    error = convert("NOT_FOUND", details)
    assert (type(error), error.message) == (errors.NotFoundError, details)


@pytest.mark.parametrize(
    "details",
    [
        *("Received http2 header with status: 404", "missing :status header"),
        "Trying to connect an http1.x server",
    ],
)
@pytest.mark.parametrize("status", ["UNAVAILABLE", "UNIMPLEMENTED"])
def test_a_server_that_does_not_speak_flight_is_not_a_peer(status: str, details: str) -> None:
    error = convert(status, details)
    assert type(error) is errors.NotAPeerError
    assert "the server at grpc://h:1 does not speak Flight; check" in error.message


def test_a_late_response_is_a_stall() -> None:
    error = convert("DEADLINE_EXCEEDED", "socket closed")
    assert type(error) is errors.StallError
    assert error.message == (
        "grpc://h:1 did not respond in time: it may be overloaded or unreachable; "
        "allow more time with timeout"
    )


@pytest.mark.parametrize("details", ["", None])
def test_an_error_without_details_names_the_server_and_the_status(details: str | None) -> None:
    error = convert("INTERNAL", details)
    assert isinstance(error, errors.RemoteError)
    assert (error.code, error.message) == ("INTERNAL", "grpc://h:1 failed with INTERNAL")


def test_an_error_that_is_no_call_is_of_unknown_status() -> None:
    error = convert_grpc_error(grpc.RpcError(), "grpc://h:1")
    assert isinstance(error, errors.RemoteError)
    assert (error.code, error.message) == ("UNKNOWN", "grpc://h:1 failed with UNKNOWN")
    assert error.stream is None


def test_the_token_is_hidden_wherever_it_is() -> None:
    error = convert("NOT_FOUND", "key and key", secrets=("other", "key"))
    assert error.message == "… and …"
    assert convert("NOT_FOUND", "key").message == "key"


@pytest.mark.parametrize(
    ("status", "details", "secret", "message"),
    [
        ("UNAUTHENTICATED", "no token", None, "no token; pass a token: token=, or"),
        ("UNAUTHENTICATED", "bad token", "x", "bad token; check the token: token=, or"),
        ("UNAUTHENTICATED", "the token expired", "y", "the token expired; to renew it: token_file"),
        ("UNAUTHENTICATED", "no certificate", None, "no certificate"),
        ("PERMISSION_DENIED", "your token", None, "your token"),
    ],
)
def test_who_lacks_a_token_is_told_where_to_set_it(
    status: str, details: str, secret: str | None, message: str
) -> None:
    error = convert(status, details, secrets=() if secret is None else (secret,))
    assert error.message.startswith(message)
    assert error.message.endswith("SPLITARROW_TOKEN") == ("token=" in message)


def test_a_closed_call_is_closed_whatever_grpc_says() -> None:
    for status in ("CANCELLED", "DEADLINE_EXCEEDED", "NOT_FOUND"):
        error = convert(status, "failed to connect", closed=True)
        assert (type(error), error.message) == (errors.ClosedError, "the stream was cancelled")


@pytest.mark.parametrize(
    "error",
    [
        errors.remote_error("NOT_FOUND", "old"),
        errors.remote_error("ABORTED", "old"),
        errors.ConnectError("old"),
    ],
)
def test_an_error_may_be_told_in_other_words(error: errors.SplitArrowError) -> None:
    other = restate_error(error, "new", "d")
    assert (type(other), other.message, other.stream) == (type(error), "new", "d")
    assert getattr(other, "code", None) == getattr(error, "code", None)
