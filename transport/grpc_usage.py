"""The use of gRPC in this process, and what follows from it for processes that are forked.

gRPC's threads do not exist in a forked process, but the locks that they held do. gRPC can then wait
forever there. A process that ends before gRPC's threads do can be aborted.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import sys
import time
import weakref
from collections.abc import Callable
from pathlib import Path

from ..errors import MissingExtraError, UsageError

_THREAD_NAMES = ("event_engine", "grpc", "lifeguard", "timer", "resolver", "default-exec")
_FORK_SECONDS = 10.0
_EXIT_SECONDS = 2.0
_POLL_SECONDS = 0.001
_TASKS = Path("/proc/self/task")
_VARIABLES = {"GRPC_VERBOSITY": "NONE", "GRPC_DNS_RESOLVER": "native"}
"""The resolver of the system knows all addresses of a name, where gRPC's may know one of them."""


def import_grpc() -> None:
    """Import gRPC so that it does not write to standard error; exceptions state what failed.

    It does that by default when a connection or a fork surprises it. It reads the variables once.
    Raises `MissingExtraError` if gRPC is not installed, as with free-threaded Python.
    """
    added = {name: text for name, text in _VARIABLES.items() if name not in os.environ}
    if "grpc" in sys.modules:
        return
    if importlib.util.find_spec("grpc") is None:
        raise MissingExtraError("a control plane needs the package grpcio")
    if added:
        os.environ.update(added)
        try:
            importlib.import_module("grpc")
        finally:
            for name in added:
                del os.environ[name]


class GrpcUsage:
    """The objects of this process that use gRPC: channels.

    `list_threads` returns the ids of gRPC's threads in this process, or None if they are unknown.
    """

    def __init__(
        self, list_threads: Callable[[], frozenset[int] | None], has_fork_support: bool
    ) -> None:
        self._list_threads = list_threads
        self.has_fork_support = has_fork_support
        """Whether gRPC itself keeps forked processes working."""
        self._users: weakref.WeakSet[object] = weakref.WeakSet()
        self._inherited: list[object] = []
        self._foreign: frozenset[int] | None = None
        self._is_used = False
        self._is_busy = False
        self._has_waited = False
        self.is_blocked = False
        """Whether gRPC may wait forever in this process, because the parent used it at the fork."""

    def check_process(self) -> None:
        """Raise `UsageError` if the parent of this process used gRPC when it forked."""
        if self.is_blocked:
            raise UsageError(
                "this process was forked while its parent used gRPC, which can wait forever in "
                "such a process: open a client in this process, and do not upload or use the "
                "transport flight; or close all clients and iterators before the fork; or "
                "start the process with multiprocessing_context='forkserver' or 'spawn'; or set "
                "the variable GRPC_ENABLE_FORK_SUPPORT=1 before the parent starts"
            )

    def add(self, user: object) -> None:
        """Check the process, and count an object that uses gRPC until it is collected."""
        self.check_process()
        if not self._is_used:
            # Other libraries contain a gRPC of their own, whose threads do not concern this one.
            self._foreign = self._list_threads()
            self._is_used = True
        self._has_waited = False
        self._users.add(user)

    def discard(self, user: object) -> None:
        """Stop counting an object, which no longer uses gRPC. Idempotent."""
        self._users.discard(user)

    def before_fork(self) -> None:
        """Wait for the threads of objects that ended just now. Call it in the parent."""
        if self._is_used and not self.has_fork_support:
            self._wait_for_threads(_FORK_SECONDS)

    def after_fork(self) -> None:
        """Start anew in the child, unless gRPC is in use."""
        if not self._is_used or self.has_fork_support:
            return
        if self._is_busy:
            self.is_blocked = True
            self._inherited += self._users  # to destroy them would use gRPC
        self._users = weakref.WeakSet()
        self._is_used = False

    def at_exit(self) -> None:
        """Wait for the threads of objects that ended just now. Call it when the process ends."""
        if self._is_used and not self.is_blocked:
            self._wait_for_threads(_EXIT_SECONDS)

    def _wait_for_threads(self, seconds: float) -> None:
        """Wait until no thread of gRPC is left, unless an object still uses it."""
        self._is_busy = True
        end = time.monotonic() + seconds
        while not self._users:
            threads = self._list_threads()
            if threads is None or self._foreign is None:
                return
            if threads <= self._foreign:
                self._is_busy = False
                return
            if self._has_waited or time.monotonic() >= end:
                self._has_waited = True  # another user of the same gRPC may keep them
                return
            time.sleep(_POLL_SECONDS)


def _list_grpc_threads() -> frozenset[int] | None:
    found: set[int] = set()
    try:
        tasks = os.listdir(_TASKS)
    except OSError:
        return None  # not on Linux
    for task in tasks:
        try:
            name = (_TASKS / task / "comm").read_text()
        except OSError:
            continue  # it has just ended
        if name.startswith(_THREAD_NAMES):
            found.add(int(task))
    return frozenset(found)


GRPC_USAGE = GrpcUsage(
    _list_grpc_threads,
    os.environ.get("GRPC_ENABLE_FORK_SUPPORT", "").lower() in ("1", "true", "yes"),
)
"""The use of gRPC in this process."""
atexit.register(GRPC_USAGE.at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=GRPC_USAGE.before_fork, after_in_child=GRPC_USAGE.after_fork)
