"""What a power failure leaves of the files that a process writes.

`record` runs a Python program under strace, and returns the calls that changed files. `Disk`
replays them. A power failure leaves what fsync has written: the data of a file as of its last
fsync, and the changes of a folder up to its last fsync. Of everything later, any part may be left.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

_WRITES = ("write", "pwrite64", "writev", "sendfile", "copy_file_range")
_CALLS = (
    *("open", "openat", "creat", "lseek", "ftruncate", "fallocate", "fsync", "fdatasync"),
    *("rename", "renameat", "renameat2", "link", "linkat", "unlink", "unlinkat", "mkdir"),
    *("mkdirat", "rmdir", *_WRITES),
)
_MAX_BYTES = 1 << 22
_LINE = re.compile(r"(\d+) +(?:(\w+)\((.*)|<\.\.\. (\w+) resumed>(.*))")
_UNFINISHED = " <unfinished ...>"
_TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"(\.\.\.)?')
_FILE = re.compile(r"(AT_FDCWD|\d+)<([^>]*)>")
_NUMBER = re.compile(r"-?\d+")


@dataclass(frozen=True)
class SystemCall:
    """One call that has succeeded, with its arguments as strace writes them."""

    name: str
    arguments: str
    result: str

    @property
    def texts(self) -> list[bytes]:
        """The strings among the arguments: paths or data."""
        found = _TEXT.findall(self.arguments)
        assert not any(more for _, more in found), f"{self.name} has more data than was recorded"
        return [_unescape(text) for text, _ in found]

    @property
    def files(self) -> list[tuple[str, str]]:
        """The descriptors among the arguments, and their paths."""
        found = _FILE.findall(_TEXT.sub("", self.arguments))
        return [(number, os.fsdecode(_unescape(path))) for number, path in found]

    @property
    def numbers(self) -> list[int]:
        """The numbers among the arguments that are not descriptors."""
        plain = _FILE.sub("", _TEXT.sub("", self.arguments))
        return [int(number) for number in _NUMBER.findall(plain)]

    def list_paths(self) -> list[str]:
        """Return the absolute paths among the arguments."""
        folders = [path for _, path in self.files]
        texts = [os.fsdecode(text) for text in self.texts]
        if folders:
            last = len(folders) - 1
            texts = [os.path.join(folders[min(i, last)], text) for i, text in enumerate(texts)]
        return [os.path.normpath(text) for text in texts]


def _unescape(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", "")) if text.startswith("\\x") else text.encode()


@cache
def _find_problem() -> str:
    if shutil.which("strace") is None:
        return "strace is not installed"
    probe = subprocess.run(["strace", "-qq", "true"], capture_output=True, text=True, check=False)
    return "" if probe.returncode == 0 else f"strace cannot trace: {probe.stderr.strip()}"


def record(program: str, *arguments: object) -> list[SystemCall]:
    """Run a Python program, and return its calls in the order in which they ended.

    Skip the test where there is no strace, or no process may be traced.
    """
    if problem := _find_problem():
        pytest.skip(f"{problem}; install Debian's package strace")
    reader, writer = os.pipe()
    with open(reader) as trace:
        command = ["strace", "-f", "-qq", "-xx", "-y", "-s", str(_MAX_BYTES), "--seccomp-bpf"]
        command += ["-e", f"trace={','.join(f'?{name}' for name in _CALLS)}", "-e", "signal=none"]
        command += ["-o", f"/dev/fd/{writer}", sys.executable, "-c", program, *map(str, arguments)]
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        process = subprocess.Popen(
            command,
            pass_fds=[writer],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        os.close(writer)
        calls = list(_parse(trace))
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    return calls


def _parse(lines: Iterable[str]) -> Iterator[SystemCall]:
    begun: dict[str, str] = {}
    for line in lines:
        found = _LINE.match(line.rstrip("\n"))
        if found is None:
            continue
        thread, name, rest, resumed, end = found.groups()
        if resumed:
            name, rest = resumed, begun.pop(thread, "") + end
        elif rest.endswith(_UNFINISHED):
            begun[thread] = rest.removesuffix(_UNFINISHED)
            continue
        arguments, _, result = rest.rpartition(" = ")
        if arguments and not result.startswith(("-1", "?")):
            yield SystemCall(name, arguments.rstrip()[:-1], result)


@dataclass
class _File:
    """A file or a folder, under any name."""

    is_folder: bool = False
    data: bytes = b""
    synced: bytes = b""
    """The data as of the last fsync."""
    entries: dict[str, _File] = field(default_factory=dict[str, "_File"])
    """What is in the folder."""
    synced_entries: dict[str, _File] = field(default_factory=dict[str, "_File"])
    """What is in the folder after a power failure that leaves no later change."""


@dataclass(frozen=True)
class _Change:
    """A change of the names in one folder, or in two. A file system makes all of it or nothing."""

    removed: tuple[_File, str] | None = None
    added: tuple[_File, str, _File] | None = None

    def apply(self, entries: Mapping[int, dict[str, _File]]) -> None:
        if self.removed is not None:
            entries[id(self.removed[0])].pop(self.removed[1], None)
        if self.added is not None:
            folder, name, file = self.added
            entries[id(folder)][name] = file

    def concerns(self, folder: _File) -> bool:
        return any(part is not None and part[0] is folder for part in (self.removed, self.added))


State = frozenset[tuple[str, bytes | None]]
"""The files and their data, and the folders, with paths below the folder that is watched."""


class Disk:
    """A folder, which the replayed calls change. It is empty, and synced, at first."""

    def __init__(self, folder: Path) -> None:
        self._prefix = f"{folder}/"
        self._root = _File(is_folder=True)
        self._pending: list[_Change] = []
        """The changes of names that no fsync has written."""
        self._folders = {id(self._root): self._root}
        self._positions: dict[str, int] = {}

    def apply(self, call: SystemCall) -> bool:
        """Replay a call, and return whether it concerns the folder."""
        name, paths = call.name, call.list_paths() if call.name not in _WRITES else []
        if call.files and not paths:
            return self._use_descriptor(call)
        if not any(path.startswith(self._prefix) for path in paths):
            return False
        if name in ("open", "openat", "creat"):
            return self._open(call, paths[0])
        if name.startswith("rename"):
            file, self_removed = self._take(paths[0])
            self._change(self_removed, (*self._locate(paths[1]), file))
        elif name.startswith("link"):
            file = self._find(paths[0])
            assert file is not None
            self._change(None, (*self._locate(paths[1]), file))
        elif name.startswith("mkdir"):
            folder = _File(is_folder=True)
            self._folders[id(folder)] = folder
            self._change(None, (*self._locate(paths[0]), folder))
        else:
            self._change(self._take(paths[0])[1], None)
        return True

    def _use_descriptor(self, call: SystemCall) -> bool:
        number, path = call.files[0]
        file = self._root if f"{path}/" == self._prefix else self._find(path)
        if file is None:
            return False
        if call.name in ("fsync", "fdatasync"):
            file.synced = file.data
            for change in [each for each in self._pending if each.concerns(file)]:
                self._sync_change(change)
        elif call.name == "lseek":
            self._positions[number] = int(call.result.split()[0])
        elif call.name == "ftruncate":
            size = call.numbers[-1]
            file.data = file.data[:size].ljust(size, b"\0")
        elif call.name in _WRITES:
            assert call.name in ("write", "pwrite64", "writev"), f"{call.name} is not replayed"
            data = b"".join(call.texts)[: int(call.result.split()[0])]
            at = call.numbers[-1] if call.name == "pwrite64" else self._positions[number]
            file.data = file.data[:at].ljust(at, b"\0") + data + file.data[at + len(data) :]
            if call.name != "pwrite64":
                self._positions[number] = at + len(data)
        return True

    def _sync_change(self, change: _Change) -> None:
        self._pending.remove(change)
        change.apply({key: folder.synced_entries for key, folder in self._folders.items()})

    def _open(self, call: SystemCall, path: str) -> bool:
        file = self._find(path)
        if file is None:
            assert "O_CREAT" in call.arguments, f"{path} has not been made"
            file = _File()
            self._change(None, (*self._locate(path), file))
        if "O_TRUNC" in call.arguments or call.name == "creat":
            file.data = b""
        number = call.result.partition("<")[0]
        self._positions[number] = len(file.data) if "O_APPEND" in call.arguments else 0
        return True

    def _change(
        self, removed: tuple[_File, str] | None, added: tuple[_File, str, _File] | None
    ) -> None:
        change = _Change(removed, added)
        self._pending.append(change)
        change.apply({key: folder.entries for key, folder in self._folders.items()})

    def _locate(self, path: str) -> tuple[_File, str]:
        folder = self._find(os.path.dirname(path))
        assert folder is not None, f"{path} is in no folder that was made"
        return folder, os.path.basename(path)

    def _take(self, path: str) -> tuple[_File, tuple[_File, str]]:
        folder, name = self._locate(path)
        return folder.entries[name], (folder, name)

    def _find(self, path: str) -> _File | None:
        if f"{path}/" == self._prefix:
            return self._root
        if not path.startswith(self._prefix):
            return None
        found: _File | None = self._root
        for part in path.removeprefix(self._prefix).split("/"):
            found = None if found is None else found.entries.get(part)
        return found

    def current(self) -> State:
        """Return the files as a process sees them."""
        return frozenset(_list("", self._root, lambda file: file.entries, lambda file: file.data))

    def list_failures(self) -> set[State]:
        """Return the states that a power failure may leave now.

        Of the changes of names that no fsync has written, none, one, all but one, or all are left.
        With none or all of them, data that no fsync has written is missing, zeros, or there.
        """
        pending = self._pending
        parts = [[each] for each in pending]
        parts += [[each for each in pending if each is not left] for left in pending]
        choices = [(chosen, data) for chosen in ([], pending) for data in (_lose, _clear, _keep)]
        choices += [(chosen, _keep) for chosen in parts]
        return {self._list_left(chosen, data) for chosen, data in choices}

    def _list_left(self, changes: list[_Change], data: Callable[[_File], bytes]) -> State:
        """Return the files after a power failure that leaves some of the pending changes."""
        entries = {key: dict(folder.synced_entries) for key, folder in self._folders.items()}
        for change in changes:
            change.apply(entries)
        return frozenset(_list("", self._root, lambda folder: entries[id(folder)], data))


def _lose(file: _File) -> bytes:
    return file.synced


def _clear(file: _File) -> bytes:
    return file.synced if file.synced == file.data else bytes(len(file.data))


def _keep(file: _File) -> bytes:
    return file.data


def _list(
    path: str,
    folder: _File,
    list_entries: Callable[[_File], Mapping[str, _File]],
    read: Callable[[_File], bytes],
) -> Iterator[tuple[str, bytes | None]]:
    for name, file in list_entries(folder).items():
        if file.is_folder:
            yield f"{path}{name}", None
            yield from _list(f"{path}{name}/", file, list_entries, read)
        else:
            yield f"{path}{name}", read(file)


def read_state(folder: Path) -> State:
    """Return the files that are in a folder."""
    found = sorted(folder.rglob("*"))
    return frozenset(
        (path.relative_to(folder).as_posix(), None if path.is_dir() else path.read_bytes())
        for path in found
    )


def write_state(state: State, folder: Path) -> None:
    """Write the files of a state into an empty folder."""
    for name, data in sorted(state, key=lambda pair: pair[0]):
        path = folder / name
        if data is None:
            path.mkdir()
        else:
            path.write_bytes(data)
