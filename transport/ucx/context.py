"""The UCX contexts of a process, each with its own settings.

UCX refuses a connection whose client has chosen lanes that the server, with other settings, would
not choose. So there are contexts for two kinds of peers: those that run this package and share
its settings, and plain ones that may be any UCP program.

Each kind also has a context for the loopback only. UCX examines every device of a context several
times for each connection, which is most of the cost of connecting.

Settings go to the context, never into the environment. A ``UCX_…`` variable of the user overrides
a setting of this package.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Any

from ...errors import TransportError
from . import library_log
from .ffi import API_MAJOR, API_MINOR, NULL, OK, describe, ffi, ucp, ucs
from .lanes import list_rdma_adapters

SETTINGS = {
    # With error handling, an endpoint uses only lanes that can report a failure. Shared memory
    # can if this is set. The socket that made the connection reports a peer that has died.
    "POSIX_ERROR_HANDLING": "y",
    # One kind of shared memory is enough: each costs every worker descriptors and memory.
    "TLS": "^sysv",
    # Several workers may share a cached registration. When one of them is aborted, the cache keeps
    # a callback to it, and the process hangs or crashes.
    "RCACHE_ENABLE": "n",
    # The bytes that one call copies between processes. The library waits for the call either way.
    "CMA_SEG_SIZE": "8M",
    # A server that is restarted can bind its port again at once.
    "TCP_CM_REUSEADDR": "y",
    # Detect a host that is gone, as opposed to a process.
    "TCP_KEEPIDLE": "5s",
    "TCP_KEEPINTVL": "1s",
}
"""The settings of every context, by their names without ``UCX_``."""
PEER_SETTINGS = {
    # Copying between processes can then report a failure, too. Error handling asks it to withdraw
    # memory that a peer is reading, which it cannot; `linger` keeps that memory for a while.
    "CMA_MEMORY_INVALIDATE": "y",
}
"""The settings of contexts for peers that run this package."""
TCP_SETTINGS = {"RNDV_SCHEME": "put_zcopy"}
"""The settings where large messages can use TCP lanes only. By default the library copies them in
small pieces there."""
LOOPBACK_SETTINGS = {"NET_DEVICES": "lo"}
"""The settings of contexts for the loopback only."""
_LOG_LEVEL = "error"
_TRUE_VALUES = ("y", "yes", "1", "on")

_FIELD_FEATURES, _FIELD_MT_WORKERS = 1, 1 << 5
_FEATURE_TAG, _FEATURE_RMA, _FEATURE_WAKEUP, _FEATURE_AM = 1, 1 << 1, 1 << 4, 1 << 6
_FEATURES = _FEATURE_TAG | _FEATURE_WAKEUP | _FEATURE_AM

_lock = threading.Lock()
_contexts: dict[tuple[bool, bool], tuple[int, Any]] = {}
"""The contexts by `plain` and `loopback`, each with the process that created it."""


def has_peer_settings() -> bool:
    """Return whether `PEER_SETTINGS` apply: the user has not overridden them."""
    return all(
        os.environ.get(f"UCX_{name}", value).lower() in _TRUE_VALUES
        for name, value in PEER_SETTINGS.items()
    )


def get_context(*, plain: bool = False, loopback: bool = False) -> Any:
    """Return a context of this process. It is created on first use and never destroyed.

    Parameters
    ----------
    plain : bool
        Whether the peer may be a server without this package's settings.
    loopback : bool
        Whether the context is for connections over the loopback only.

    Raises
    ------
    TransportError
        If the library refuses the settings, for instance a malformed ``UCX_…`` variable.
    """
    with _lock:
        known = _contexts.get((plain, loopback))
        if known is None or known[0] != os.getpid():  # a forked child needs its own
            settings = SETTINGS if plain else SETTINGS | PEER_SETTINGS
            if loopback:
                settings = settings | LOOPBACK_SETTINGS
            if _has_only_tcp_lanes(loopback):
                settings = settings | TCP_SETTINGS
            features = _FEATURES if plain else _FEATURES | _FEATURE_RMA
            known = _contexts[plain, loopback] = (os.getpid(), _create(settings, features))
        return known[1]


def _has_only_tcp_lanes(loopback: bool) -> bool:
    """Return whether large messages to another host, or by the user's choice, go over TCP."""
    chosen = os.environ.get("UCX_TLS")
    if chosen is not None:
        return set(chosen.split(",")) <= {"tcp", "self"}
    return not loopback and not list_rdma_adapters()


def _create(settings: Mapping[str, str], features: int) -> Any:
    if not _contexts:
        library_log.install()
    if "UCX_LOG_LEVEL" not in os.environ:
        # Below this level, the library logs what this package raises as an error.
        ucs.ucs_global_opts_set_value(b"LOG_LEVEL", _LOG_LEVEL.encode())
    config = ffi.new("ucp_config_t **")
    status = ucp.ucp_config_read(NULL, NULL, config)
    if status != OK:
        raise TransportError(f"UCX cannot read its settings: {describe(status)}")
    try:
        for name, value in settings.items():
            if f"UCX_{name}" not in os.environ:
                ucp.ucp_config_modify(config[0], name.encode(), value.encode())
        params = ffi.new("ucp_params_t *")
        params.field_mask = _FIELD_FEATURES | _FIELD_MT_WORKERS
        params.features = features
        params.mt_workers_shared = 1
        created = ffi.new("ucp_context_h *")
        status = ucp.ucp_init_version(API_MAJOR, API_MINOR, params, config[0], created)
    finally:
        ucp.ucp_config_release(config[0])
    if status != OK:
        raise TransportError(f"UCX cannot be initialized: {describe(status)}")
    return created[0]
