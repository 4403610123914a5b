"""The library: where it is loaded from, and its statuses."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from helpers.ucx_header import Header
from splitarrow.transport.ucx import ffi as ucx_library
from splitarrow.transport.ucx.ffi import StatusError, describe, ffi, get_status


@pytest.mark.parametrize(
    ("value", "status"),
    [
        (0, Header.UCS_OK),
        (-1, -1),
        (-15, Header.UCS_ERR_BUSY),
        (-100, Header.UCS_ERR_LAST),
        (-101, Header.UCS_INPROGRESS),
        (1, Header.UCS_INPROGRESS),
        (1 << 46, Header.UCS_INPROGRESS),
    ],
)
def test_a_pointer_encodes_a_status_or_is_a_request(value: int, status: int) -> None:
    pointer = ffi.cast("void *", ffi.cast("intptr_t", value))
    assert get_status(pointer) == status


def test_a_status_is_described_in_lower_case() -> None:
    assert describe(Header.UCS_OK) == "success"
    assert describe(Header.UCS_ERR_CONNECTION_RESET) == "connection reset by remote peer"
    assert StatusError(-4).status == -4


def test_the_statuses_are_those_of_the_headers() -> None:
    assert (ucx_library.OK, ucx_library.IN_PROGRESS) == (Header.UCS_OK, Header.UCS_INPROGRESS)
    assert ucx_library.ERR_BUSY == Header.UCS_ERR_BUSY
    assert ucx_library.ERR_CONNECTION_RESET == Header.UCS_ERR_CONNECTION_RESET


class Loader:
    """Takes the place of `ffi` and of the wheel; a name without a folder may be missing."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *folders: Path, missing: bool) -> None:
        self.opened: list[str] = []
        self.missing = missing
        self.loaded = 0
        self.__path__ = [str(folder) for folder in folders]
        monkeypatch.setattr(ucx_library, "ffi", SimpleNamespace(dlopen=self.dlopen))
        monkeypatch.setattr(ucx_library, "libucx", self)

    def load_library(self) -> None:
        self.loaded += 1

    def dlopen(self, name: str) -> str:
        self.opened.append(name)
        if self.missing and "/" not in name:
            raise OSError(name)
        return name


@pytest.mark.parametrize(
    ("prefers", "missing", "in_wheel", "opened"),
    [
        (None, False, True, ["wheel"]),
        ("false", False, True, ["wheel"]),
        ("FALSE", False, True, ["wheel"]),
        ("true", False, True, ["name"]),
        ("true", True, True, ["name", "wheel"]),
        (None, False, False, ["name"]),
    ],
)
def test_the_library_is_that_of_the_wheel_or_of_the_system(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    prefers: str | None,
    missing: bool,
    in_wheel: bool,
    opened: list[str],
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    (second / "lib").mkdir(parents=True)
    path = second / "lib" / "libucp.so"
    if in_wheel:
        path.touch()
    loader: Any = Loader(monkeypatch, first, second, missing=missing)
    monkeypatch.delenv(ucx_library.PREFER_SYSTEM, raising=False)
    if prefers is not None:
        monkeypatch.setenv(ucx_library.PREFER_SYSTEM, prefers)
    names = {"wheel": str(path), "name": "libucp.so"}
    assert ucx_library._load("libucp.so") == names[opened[-1]]
    assert loader.opened == [names[each] for each in opened]
    assert loader.loaded == 1
