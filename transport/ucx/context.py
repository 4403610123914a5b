"""The UCX contexts of a process, each with its own settings, and the log of the library.

The library logs to the logger ``splitarrow.ucx``.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Mapping
from enum import Enum
from typing import Any

from ...errors import TransportError
from ..log_limiter import LogLimiter
from .ffi import API_MAJOR, API_MINOR, NULL, OK, describe, ffi, libc, ucp, ucs
from .lanes import list_rdma_adapters

_LEVELS = {0: logging.CRITICAL, 1: logging.ERROR, 2: logging.WARNING, 3: logging.INFO}
"""The levels of the library that have one here; all others are for debugging."""
_STOP, _CONTINUE = 0, 1
_MAX_BYTES = 1000
_MAX_FAST_REPEATS = 100
_PAUSE_SECONDS = 0.01

_log = logging.getLogger("splitarrow.ucx")
_limiter = LogLimiter()


@ffi.callback("ucs_log_func_t")
def _handle_log(
    file: Any, line: int, function: Any, level: int, component: Any, format: Any, arguments: Any
) -> int:
    del function, component
    place = (ffi.string(file), line)
    left_out = _limiter.admit(place)
    if left_out is None:
        # The library repeats an operation that fails on a thread of its own. Pausing that thread
        # leaves the processor to those that can help.
        if _limiter.left_out(place) > _MAX_FAST_REPEATS and _is_library_thread():
            time.sleep(_PAUSE_SECONDS)
    else:
        text = ffi.new("char[]", _MAX_BYTES)
        libc.vsnprintf(text, _MAX_BYTES, format, arguments)
        message = ffi.string(text).decode(errors="replace")
        repeats = f" ({left_out} more times before)" if left_out else ""
        _log.log(_LEVELS.get(level, logging.DEBUG), "%s%s", message, repeats)
    return _CONTINUE if _has_own_output() else _STOP


def _is_library_thread() -> bool:
    """Return whether the current thread was not started by Python."""
    return threading.current_thread().name.startswith("Dummy-")


def _has_own_output() -> bool:
    """Return whether the user has configured the library's own log."""
    return "UCX_LOG_LEVEL" in os.environ or "UCX_LOG_FILE" in os.environ


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
    # memory that a peer is reading, which it cannot; `retain` keeps that memory for a while.
    "CMA_MEMORY_INVALIDATE": "y",
}
"""The settings of contexts for peers that run this package."""
TCP_SETTINGS = {
    # By default the library copies large messages in small pieces.
    "RNDV_SCHEME": "put_zcopy",
    # Smaller messages are sent at once: a rendezvous costs each of them a round trip.
    "RNDV_THRESH": "2M",
}
"""The settings where messages can use TCP lanes only."""
LOOPBACK_SETTINGS = {"NET_DEVICES": "lo"}
"""The settings of contexts for the loopback only."""
NETWORK_SETTINGS = {"TLS": "^posix,sysv,cma,xpmem,knem"}
"""The settings of contexts for peers in other network namespaces, such as those of containers. The
library offers them shared memory if they run on the same kernel, but wakes a peer up through a
socket that exists in its own namespace only."""


class Reach(Enum):
    """The place of a peer."""

    LOOPBACK = "loopback"
    """A loopback address, which other hosts cannot reach."""
    HOST = "host"
    """Another address of this host, in this network namespace."""
    NETWORK = "network"
    """Another host, or another network namespace of this host."""


_REACH_SETTINGS = {
    Reach.LOOPBACK: LOOPBACK_SETTINGS,
    Reach.HOST: dict[str, str](),
    Reach.NETWORK: NETWORK_SETTINGS,
}
_LOG_LEVEL = "error"
_TRUE_VALUES = ("y", "yes", "1", "on")

_FIELD_FEATURES, _FIELD_MT_WORKERS = 1, 1 << 5
_FEATURE_TAG, _FEATURE_RMA, _FEATURE_WAKEUP, _FEATURE_AM = 1, 1 << 1, 1 << 4, 1 << 6
_FEATURES = _FEATURE_TAG | _FEATURE_WAKEUP | _FEATURE_AM

_lock = threading.Lock()
_contexts: dict[tuple[bool, Reach], tuple[int, Any]] = {}
"""The contexts by `plain` and `reach`, each with the process that created it."""


def has_peer_settings() -> bool:
    """Return whether `PEER_SETTINGS` apply: the user has not overridden them."""
    return all(
        os.environ.get(f"UCX_{name}", value).lower() in _TRUE_VALUES
        for name, value in PEER_SETTINGS.items()
    )


def get_context(*, plain: bool = False, reach: Reach = Reach.HOST) -> Any:
    """Return a context of this process. It is created on first use and never destroyed.

    Raises `TransportError` if the library refuses the settings, for instance a malformed ``UCX_…``
    variable.
    """
    with _lock:
        known = _contexts.get((plain, reach))
        if known is None or known[0] != os.getpid():  # a forked child needs its own
            settings = SETTINGS if plain else SETTINGS | PEER_SETTINGS
            settings = settings | _REACH_SETTINGS[reach]
            if _has_only_tcp_lanes(reach):
                settings = settings | TCP_SETTINGS
            features = _FEATURES if plain else _FEATURES | _FEATURE_RMA
            known = _contexts[plain, reach] = (os.getpid(), _create(settings, features))
        return known[1]


def _has_only_tcp_lanes(reach: Reach) -> bool:
    """Return whether messages to another host, or by the user's choice, go over TCP."""
    chosen = os.environ.get("UCX_TLS")
    if chosen is not None:
        return set(chosen.split(",")) <= {"tcp", "self"}
    return reach is Reach.NETWORK and not list_rdma_adapters()


def _create(settings: Mapping[str, str], features: int) -> Any:
    if not _contexts:
        ucs.ucs_log_push_handler(_handle_log)
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
