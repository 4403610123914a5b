"""Running a function in a process of its own, and ending all that it has started; see `mutants`."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose own parent has ended.

    It then finds even a daemon that has a session of its own. The process itself ends with its
    parent.
    """
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def find_descendants() -> list[int]:
    """Return the processes that this one has started, directly or not."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):  # It has ended.
                parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
                children.setdefault(int(parent), []).append(int(entry.name))
    found = [os.getpid()]
    for pid in found:
        found += children.get(pid, [])
    return found[1:]


def end_descendants() -> None:
    """Kill all descendants of this process, which has called `adopt_orphans`, and reap them."""
    while True:
        for pid in find_descendants():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.01)


def in_child(
    workplace: Path, seconds: float, function: Callable[..., int | None], *arguments: Any
) -> int | None:
    """Run a function in a fork of this process, which has called `adopt_orphans`.

    Nothing that the function starts or leaves in its folder of temporary files outlives it. What it
    prints is in ``output.txt``.

    Returns
    -------
    int or None
        The exit status, or None after a timeout.
    """
    temporary = workplace / "t"  # Short, because the paths of sockets may not be long.
    temporary.mkdir()
    pid = os.fork()
    if pid == 0:
        _run_forked(workplace, temporary, function, arguments)
    deadline = time.monotonic() + seconds
    try:
        while time.monotonic() < deadline:
            done, status = os.waitpid(-1, os.WNOHANG)
            if done == pid:
                return os.waitstatus_to_exitcode(status)
            if not done:
                time.sleep(0.02)
        return None
    finally:
        end_descendants()
        shutil.rmtree(temporary, ignore_errors=True)


def _run_forked(
    workplace: Path, temporary: Path, function: Callable[..., int | None], arguments: Any
) -> None:
    """Run a function in this process and exit."""
    status = 70
    try:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        with open(workplace / "output.txt", "wb") as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        os.environ.update(PYTHONPATH=str(workplace), TMPDIR=str(temporary))
        tempfile.tempdir = None
        sys.path.insert(0, str(workplace))
        os.chdir(workplace / "splitarrow")
        status = function(workplace, *arguments) or 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)
