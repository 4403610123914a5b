"""Addresses on the network are refused unless they are protected or explicitly allowed."""

from __future__ import annotations

import pytest

from splitarrow.errors import ConfigError
from splitarrow.protocol.uri import DataUri
from splitarrow.server.addresses import (
    check_exposure,
    is_exposed,
    is_loopback,
    list_unencrypted_addresses,
)

LOCAL = (
    "tcp://127.0.0.1:8816",
    "tcp://127.8.8.8:0",
    "tcp://[::1]:0",
    "tcp://[::ffff:127.0.0.1]:0",
    "tcp://localhost:0",
    "tcp://LocalHost.:0",
    "tcp://:8816",
    "tcp+tls://",
    "inproc://",
    "inproc://name",
    "shm:///run/splitarrow.sock",
    "ucx://127.0.0.1:0",
    "ucx://:8817",
    "grpc://127.0.0.1:8815",
    "grpc+tcp://127.0.0.1:8815",
)
OPEN = (
    "tcp://0.0.0.0:0",
    "tcp://[::]:0",
    "tcp://10.0.0.7:0",
    "tcp://[fe80::1%25eth0]:0",
    "tcp://[::ffff:10.0.0.7]:0",
    "tcp://node7:0",
    "tcp://localhost.example:0",
    "tcp://127.0.0.1.example:0",
    "tcp+tls://0.0.0.0:0",
    "ucx://0.0.0.0:0",
    "grpc://:8815",
    "grpc+tcp://0.0.0.0:8815",
    "grpc+tls://0.0.0.0:8815",
)


@pytest.mark.parametrize("text", LOCAL)
def test_local_addresses_need_no_protection(text: str) -> None:
    uri = DataUri.parse(text)
    assert not is_exposed(uri)
    check_exposure([uri], uri, requires_token=False)
    assert list_unencrypted_addresses([uri], uri) == []


@pytest.mark.parametrize("text", OPEN)
def test_addresses_on_the_network_need_protection(text: str) -> None:
    uri = DataUri.parse(text)
    local = DataUri.parse("tcp://127.0.0.1:0")
    assert is_exposed(uri)
    for listeners, control in (([local, uri], None), ([local], uri), ([uri], uri)):
        with pytest.raises(ConfigError, match="could read from") as caught:
            check_exposure(listeners, control, requires_token=False)
        assert uri.address in str(caught.value)
        assert local.address not in str(caught.value)
        assert "--insecure" in str(caught.value)
        check_exposure(listeners, control, requires_token=True)
        check_exposure(listeners, control, requires_token=False, insecure=True)
    assert (list_unencrypted_addresses([uri], None) == []) == ("+tls" in text)


def test_signed_tickets_protect_listeners_and_tokens_protect_the_control_plane() -> None:
    uri, control = DataUri.parse("tcp://0.0.0.0:0"), DataUri.parse("grpc://0.0.0.0:0")
    check_exposure([uri], None, requires_token=False, signs_tickets=True)
    with pytest.raises(ConfigError, match=r"from grpc://0\.0\.0\.0:0: give"):
        check_exposure([uri], control, requires_token=False, signs_tickets=True)


def test_client_certificates_protect_listeners_with_tls() -> None:
    secure, plain = DataUri.parse("tcp+tls://0.0.0.0:0"), DataUri.parse("tcp://0.0.0.0:0")
    check_exposure([secure], None, requires_token=False, client_certificates=True)
    with pytest.raises(ConfigError, match="from tcp://"):
        check_exposure([secure, plain], None, requires_token=False, client_certificates=True)


def test_the_error_does_not_quote_the_ticket() -> None:
    uri = DataUri.parse("tcp://0.0.0.0:0?ticket=canary")
    with pytest.raises(ConfigError) as caught:
        check_exposure([uri], None, requires_token=False)
    assert "canary" not in str(caught.value)


def test_host_names_are_not_resolved() -> None:
    assert not is_loopback("")
    assert not is_loopback("127.1")
    assert is_loopback("::1%lo")
