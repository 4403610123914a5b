"""The UCX contexts of a process, with settings of their own.

There is one for peers like this program, and a plain one for servers that are not: UCX refuses
a connection whose client chose lanes that its server, with other settings, would not choose.
Each may be for the loopback alone: for every connection UCX looks many times at each network
device that a context knows, and that is most of what making a connection costs.

Settings go to the context and never into the environment. A variable ``UCX_…`` that the user
has set wins over ours.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Any

from ...errors import TransportError
from .lanes import adapters
from .library import API_MAJOR, API_MINOR, NULL, OK, describe, ffi, ucp, ucs

SETTINGS = {
    # With error handling an endpoint uses only lanes that can tell of a failure. Shared memory
    # can, if asked to; a peer that dies is noticed by the socket that made the connection.
    "POSIX_ERROR_HANDLING": "y",
    # One kind of shared memory is enough: each costs every worker descriptors and memory.
    "TLS": "^sysv",
    # Of a registration that several workers share through a cache, one that is aborted leaves a
    # callback to a worker that is gone, and the process hangs or dies.
    "RCACHE_ENABLE": "n",
    # How much one call copies from a process to another: the library waits for it all the same.
    "CMA_SEG_SIZE": "8M",
    # A server that starts again takes its port again.
    "TCP_CM_REUSEADDR": "y",
    # The host has gone, and not only the process: probed from here on, in seconds.
    "TCP_KEEPIDLE": "5s",
    "TCP_KEEPINTVL": "1s",
}
"""What is set where the user has set nothing, by the name without ``UCX_``."""
AMONG_OURSELVES = {
    # Copying between processes could tell of a failure, too. It cannot take memory back that a
    # peer is reading, as error handling wants; what was given up is kept for a while (`closing`).
    "CMA_MEMORY_INVALIDATE": "y",
}
"""What is set beside that, where both sides do."""
OVER_TCP = {"RNDV_SCHEME": "put_zcopy"}
"""What is set beside that where large messages can only go over TCP lanes: by itself the library
copies them in small pieces there."""
_LOG_LEVEL = "error"
_YES = ("y", "yes", "1", "on")

_FIELD_FEATURES, _FIELD_MT_WORKERS = 1 << 0, 1 << 5
_FEATURE_TAG, _FEATURE_RMA, _FEATURE_WAKEUP, _FEATURE_AM = 1 << 0, 1 << 1, 1 << 4, 1 << 6
_FEATURES = _FEATURE_TAG | _FEATURE_WAKEUP | _FEATURE_AM

_lock = threading.Lock()


def has_own_settings() -> bool:
    """Tell whether `AMONG_OURSELVES` holds: no variable of the user's says otherwise."""
    return all(
        os.environ.get(f"UCX_{name}", value).lower() in _YES
        for name, value in AMONG_OURSELVES.items()
    )


LOOPBACK = {"NET_DEVICES": "lo"}
"""What is set beside that for connections over the loopback."""
_contexts: dict[tuple[bool, bool], tuple[int, Any]] = {}


def context(*, plain: bool = False, loopback: bool = False) -> Any:
    """Return a context of this process; it is made when it is first needed.

    Parameters
    ----------
    plain : bool
        Whether it is for a server that is not known to have the same settings.
    loopback : bool
        Whether it is for connections over the loopback alone.

    Raises
    ------
    TransportError
        If the library refuses, for instance for a malformed ``UCX_…`` variable.
    """
    with _lock:
        made = _contexts.get((plain, loopback))
        if made is None or made[0] != os.getpid():
            settings = SETTINGS if plain else SETTINGS | AMONG_OURSELVES
            if loopback:
                settings = settings | LOOPBACK
            if _goes_over_tcp(loopback):
                settings = settings | OVER_TCP
            features = _FEATURES if plain else _FEATURES | _FEATURE_RMA
            made = _contexts[plain, loopback] = (os.getpid(), _make(settings, features))
        return made[1]


def _goes_over_tcp(loopback: bool) -> bool:
    chosen = os.environ.get("UCX_TLS")
    if chosen is not None:
        return set(chosen.split(",")) <= {"tcp", "self"}
    return not loopback and not adapters()


def _make(settings: Mapping[str, str], features: int) -> Any:
    if "UCX_LOG_LEVEL" not in os.environ:
        # What goes wrong is raised as an error; the library would write it to standard output.
        ucs.ucs_global_opts_set_value(b"LOG_LEVEL", _LOG_LEVEL.encode())
    config = ffi.new("ucp_config_t **")
    status = ucp.ucp_config_read(NULL, NULL, config)
    if status != OK:
        raise TransportError(f"the settings of UCX cannot be read: {describe(status)}")
    try:
        for name, value in settings.items():
            if f"UCX_{name}" not in os.environ:
                ucp.ucp_config_modify(config[0], name.encode(), value.encode())
        params = ffi.new("ucp_params_t *")
        params.field_mask = _FIELD_FEATURES | _FIELD_MT_WORKERS
        params.features = features
        params.mt_workers_shared = 1
        made = ffi.new("ucp_context_h *")
        status = ucp.ucp_init_version(API_MAJOR, API_MINOR, params, config[0], made)
    finally:
        ucp.ucp_config_release(config[0])
    if status != OK:
        raise TransportError(f"UCX cannot be initialized: {describe(status)}")
    return made[0]
