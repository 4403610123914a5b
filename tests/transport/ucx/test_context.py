"""The contexts of a process: their settings, and how they are created."""

from __future__ import annotations

import itertools
import os
from typing import Any

import pytest

from helpers.ucx_header import Header, read_numbers
from splitarrow.errors import TransportError
from splitarrow.transport.ucx import (
    context,
)
from splitarrow.transport.ucx.context import Reach
from splitarrow.transport.ucx.ffi import NULL, OK, ffi, ucp

FAILED = Header.UCS_ERR_NO_MEMORY
COMMON = context.SETTINGS
FEATURES = Header.UCP_FEATURE_TAG | Header.UCP_FEATURE_WAKEUP | Header.UCP_FEATURE_AM


@pytest.fixture(autouse=True)
def no_settings_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("UCX_"):
            monkeypatch.delenv(name)


class Library:
    """Takes the place of the library, and records the settings of contexts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.settings: dict[str, str] = {}
        self.options: list[Any] = []
        self.inits: list[Any] = []
        self.released = 0
        self.read_status = self.init_status = OK
        self.installed = 0
        monkeypatch.setattr(context, "ucp", self)
        monkeypatch.setattr(context, "ucs", self)

    def ucs_log_push_handler(self, handler: Any) -> None:
        assert handler == context._handle_log
        self.installed += 1

    def ucs_global_opts_set_value(self, name: bytes, value: bytes) -> int:
        self.options.append((name, value))
        return OK

    def ucp_config_read(self, prefix: Any, file: Any, config: Any) -> int:
        assert (prefix, file) == (NULL, NULL)
        config[0] = ffi.cast("ucp_config_t *", 64)
        return self.read_status

    def ucp_config_modify(self, config: Any, name: bytes, value: bytes) -> int:
        self.settings[name.decode()] = value.decode()
        return OK

    def ucp_config_release(self, config: Any) -> None:
        assert config == ffi.cast("ucp_config_t *", 64)
        self.released += 1

    def ucp_init_version(self, major: int, minor: int, params: Any, config: Any, out: Any) -> int:
        self.inits.append((major, minor, read_numbers(params)))
        out[0] = ffi.cast("ucp_context_h", 4096)
        return self.init_status


def test_a_context_is_created_with_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library(monkeypatch)
    monkeypatch.setattr(context, "_contexts", {})
    monkeypatch.setenv("UCX_TLS", "all")
    created = context._create({"TLS": "^sysv", "RCACHE_ENABLE": "n"}, FEATURES)
    assert int(ffi.cast("uintptr_t", created)) == 4096
    assert library.settings == {"RCACHE_ENABLE": "n"}  # the user has chosen the other
    mask = Header.UCP_PARAM_FIELD_FEATURES | Header.UCP_PARAM_FIELD_MT_WORKERS_SHARED
    params = {"field_mask": mask, "features": FEATURES, "mt_workers_shared": 1}
    assert library.inits == [(1, 21, params)]
    assert (library.released, library.installed) == (1, 1)
    assert library.options == [(b"LOG_LEVEL", b"error")]


def test_the_log_of_the_library_is_installed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library(monkeypatch)
    monkeypatch.setattr(context, "_contexts", {(False, context.Reach.HOST): (0, "an earlier one")})
    monkeypatch.setenv("UCX_LOG_LEVEL", "debug")
    context._create({}, FEATURES)
    assert (library.installed, library.options) == (0, [])


def test_settings_that_the_library_refuses_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library(monkeypatch)
    library.init_status = FAILED
    with pytest.raises(TransportError, match="cannot be initialized: out of memory"):
        context._create({}, FEATURES)
    assert library.released == 1
    library.read_status = FAILED
    with pytest.raises(TransportError, match="cannot read its settings: out of memory"):
        context._create({}, FEATURES)
    assert (library.released, len(library.inits)) == (1, 1)


@pytest.mark.parametrize(
    ("plain", "reach", "adapters", "extra"),
    [
        (False, Reach.HOST, [], context.PEER_SETTINGS),
        (False, Reach.NETWORK, ["mlx5_0"], context.PEER_SETTINGS | context.NETWORK_SETTINGS),
        (
            *(False, Reach.NETWORK, []),
            context.PEER_SETTINGS | context.NETWORK_SETTINGS | context.TCP_SETTINGS,
        ),
        (False, Reach.LOOPBACK, [], context.PEER_SETTINGS | context.LOOPBACK_SETTINGS),
        (True, Reach.HOST, ["mlx5_0"], {}),
        (True, Reach.NETWORK, [], context.NETWORK_SETTINGS | context.TCP_SETTINGS),
        (True, Reach.LOOPBACK, [], context.LOOPBACK_SETTINGS),
    ],
)
def test_each_kind_of_peer_has_one_context(
    monkeypatch: pytest.MonkeyPatch,
    plain: bool,
    reach: Reach,
    adapters: list[str],
    extra: dict[str, str],
) -> None:
    made: list[Any] = []

    def create(settings: Any, features: int) -> int:
        made.append((settings, features))
        return len(made)

    monkeypatch.setattr(context, "_contexts", {})
    monkeypatch.setattr(context, "_create", create)
    monkeypatch.setattr(context, "list_rdma_adapters", lambda: adapters)
    first = context.get_context(plain=plain, reach=reach)
    assert context.get_context(plain=plain, reach=reach) == first == 1
    assert context.get_context(plain=not plain, reach=reach) == 2
    remote = 0 if plain else Header.UCP_FEATURE_RMA
    assert made[0] == (dict(COMMON) | extra, FEATURES | remote)
    own = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: own + 1)  # as in a forked child
    assert context.get_context(plain=plain, reach=reach) == 3
    assert context.get_context(plain=plain, reach=reach) == 3


def test_a_context_is_for_peers_with_these_settings_by_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    contexts = {key: (os.getpid(), key) for key in itertools.product((False, True), Reach)}
    monkeypatch.setattr(context, "_contexts", contexts)
    assert context.get_context() == (False, Reach.HOST)


@pytest.mark.parametrize(
    ("value", "applies"),
    [(None, True), ("y", True), ("YES", True), ("1", True), ("on", True), ("n", False)],
)
def test_a_user_may_override_the_settings_for_peers(
    monkeypatch: pytest.MonkeyPatch, value: str | None, applies: bool
) -> None:
    if value is not None:
        monkeypatch.setenv("UCX_CMA_MEMORY_INVALIDATE", value)
    assert context.has_peer_settings() is applies


@pytest.mark.parametrize(
    ("reach", "adapters", "only_tcp"),
    [
        (Reach.NETWORK, [], True),
        (Reach.NETWORK, ["mlx5_0"], False),
        (Reach.HOST, [], False),
        (Reach.LOOPBACK, [], False),
    ],
)
def test_other_hosts_are_reached_over_tcp_without_adapters(
    monkeypatch: pytest.MonkeyPatch, reach: Reach, adapters: list[str], only_tcp: bool
) -> None:
    monkeypatch.setattr(context, "list_rdma_adapters", lambda: adapters)
    assert context._has_only_tcp_lanes(reach) is only_tcp


def test_the_settings_exist_in_the_library() -> None:
    config = ffi.new("ucp_config_t **")
    assert ucp.ucp_config_read(NULL, NULL, config) == OK
    try:
        settings = {
            **context.SETTINGS,
            **context.PEER_SETTINGS,
            **context.TCP_SETTINGS,
            **context.LOOPBACK_SETTINGS,
            **context.NETWORK_SETTINGS,
        }
        for name, value in settings.items():
            assert ucp.ucp_config_modify(config[0], name.encode(), value.encode()) == OK
        assert ucp.ucp_config_modify(config[0], b"MISSPELLED", b"y") != OK
    finally:
        ucp.ucp_config_release(config[0])


@pytest.mark.parametrize(
    ("chosen", "only_tcp"),
    [("tcp", True), ("tcp,self", True), ("self,tcp", True), ("tcp,posix", False), ("all", False)],
)
def test_the_lanes_that_a_user_chooses(
    monkeypatch: pytest.MonkeyPatch, chosen: str, only_tcp: bool
) -> None:
    monkeypatch.setenv("UCX_TLS", chosen)
    assert [context._has_only_tcp_lanes(reach) for reach in Reach] == [only_tcp] * len(Reach)
