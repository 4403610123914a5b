"""Endpoints: how they are created on either side, and their lanes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from helpers.ucx_header import Header, read_numbers
from splitarrow.transport.ucx import endpoint
from splitarrow.transport.ucx.ffi import OK, ffi
from splitarrow.transport.ucx.worker import on_error

FAILED = Header.UCS_ERR_NO_MEMORY


def number_of(pointer: Any) -> int:
    return int(ffi.cast("uintptr_t", pointer))


@pytest.fixture
def created(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The parameters of each endpoint that is created."""
    found: list[dict[str, Any]] = []

    def create(worker: Any, params: Any, created: Any) -> int:
        address = params.sockaddr
        found.append(
            {
                **read_numbers(params),
                "worker": worker,
                "handler": params.err_handler.cb == on_error,
                "argument": number_of(params.err_handler.arg),
                "address": bytes(ffi.buffer(address.addr, address.addrlen))
                if address.addrlen
                else b"",
                "request": number_of(params.conn_request),
            }
        )
        created[0] = ffi.cast("ucp_ep_h", 4096)
        return OK if len(found) == 1 else FAILED

    monkeypatch.setattr(endpoint, "ucp", SimpleNamespace(ucp_ep_create=create))
    return found


def test_a_client_asks_for_error_handling(created: list[dict[str, Any]]) -> None:
    worker: Any = SimpleNamespace(handle="worker", callback_argument=ffi.cast("void *", 64))
    address = endpoint.pack_address("127.0.0.1", 8817)
    status, handle = endpoint.connect_endpoint(worker, address)
    assert (status, number_of(handle)) == (OK, 4096)
    assert created == [
        {
            "field_mask": Header.UCP_EP_PARAM_FIELD_ERR_HANDLER
            | Header.UCP_EP_PARAM_FIELD_FLAGS
            | Header.UCP_EP_PARAM_FIELD_SOCK_ADDR
            | Header.UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE,
            "err_mode": Header.UCP_ERR_HANDLING_MODE_PEER,
            "flags": Header.UCP_EP_PARAMS_FLAGS_CLIENT_SERVER,
            "worker": "worker",
            "handler": True,
            "argument": 64,
            "address": address,
            "request": 0,
        }
    ]
    assert endpoint.connect_endpoint(worker, address) == (FAILED, None)


def test_a_server_adopts_the_mode_of_its_client(created: list[dict[str, Any]]) -> None:
    worker: Any = SimpleNamespace(handle="worker", callback_argument=ffi.cast("void *", 64))
    status, handle = endpoint.accept_endpoint(worker, ffi.cast("ucp_conn_request_h", 128))
    assert (status, number_of(handle)) == (OK, 4096)
    assert created == [
        {
            "field_mask": Header.UCP_EP_PARAM_FIELD_ERR_HANDLER
            | Header.UCP_EP_PARAM_FIELD_CONN_REQUEST,
            "worker": "worker",
            "handler": True,
            "argument": 64,
            "address": b"",
            "request": 128,
        }
    ]
    assert endpoint.accept_endpoint(worker, ffi.cast("ucp_conn_request_h", 128)) == (FAILED, None)


def test_each_lane_is_listed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = [("tcp", "eth0"), ("posix", "memory"), ("tcp", "eth0"), ("sockaddr", "")]
    names = [[ffi.new("char[]", text.encode()) for text in pair] for pair in listed]
    status = OK

    def query(handle: Any, attributes: Any) -> int:
        assert handle == "endpoint"
        assert attributes.field_mask == Header.UCP_EP_ATTR_FIELD_TRANSPORTS
        transports = attributes.transports
        assert transports.num_entries == 16
        assert transports.entry_size == ffi.sizeof("ucp_transport_entry_t")
        transports.num_entries = len(names)
        for number, (transport, device) in enumerate(names):
            transports.entries[number].transport_name = transport
            transports.entries[number].device_name = device
        return status

    monkeypatch.setattr(endpoint, "ucp", SimpleNamespace(ucp_ep_query=query))
    assert endpoint.list_lanes("endpoint") == ["tcp/eth0", "posix/memory"]
    status = FAILED
    assert endpoint.list_lanes("endpoint") == []
