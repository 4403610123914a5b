"""The directory of the regions that a process can pass to another one."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.waiting import wait_until
from splitarrow.errors import DatasetError
from splitarrow.transport.memory.mapped_region import REGIONS, MappedRegion, RegionDirectory


@pytest.fixture(autouse=True)
def is_open() -> Iterator[None]:
    REGIONS.open()
    yield
    REGIONS.close()


def map_file(tmp_path: Path, *revocation: int) -> MappedRegion:
    path = tmp_path / "data"
    path.write_bytes(bytes(range(200)))
    return MappedRegion(os.open(path, os.O_RDONLY), 200, *revocation)


def test_a_region_is_found_by_the_addresses_in_it(tmp_path: Path) -> None:
    region = map_file(tmp_path)
    begin = region.address
    found = REGIONS.find(begin, 200)
    assert found is not None
    number, same = found
    assert same is region
    assert REGIONS.get(number) is region
    assert REGIONS.find(begin + 199, 1) == found
    assert REGIONS.find(begin + 199, 2) is None
    assert REGIONS.find(begin - 1, 2) is None
    del region, same, found
    assert REGIONS.get(number) is None
    assert REGIONS.find(begin, 1) is None


def test_a_region_can_be_mapped_again_from_its_descriptors(tmp_path: Path) -> None:
    region = map_file(tmp_path)
    with region.hold_descriptors() as descriptors:
        again = MappedRegion(os.dup(descriptors[0]), 200)
    assert again.address != region.address
    assert again.buffer(0, 200, None).to_pybytes() == bytes(range(200))


def test_a_closed_directory_keeps_no_descriptor(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    REGIONS.close()
    with ours:
        region = map_file(tmp_path, theirs.detach())
        with region.hold_descriptors() as descriptors:
            assert len(descriptors) == 1
        assert REGIONS.find(region.address, 1) is None


def test_a_revoked_file_is_not_passed(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    with ours:
        region = map_file(tmp_path, theirs.detach())
        buffer = region.buffer(0, 200, None)
        with region.hold_descriptors() as descriptors:
            assert len(descriptors) == 2
        assert REGIONS.find(region.address, 1) is not None
        ours.shutdown(socket.SHUT_WR)
        wait_until(lambda: region.is_lost)
        assert REGIONS.find(region.address, 1) is None
        with pytest.raises(DatasetError, match="being changed"), region.hold_descriptors():
            pass
        assert buffer.to_pybytes() == bytes(range(200))


class Span:
    """A region at some addresses."""

    is_lost = False

    def __init__(self, address: int, size: int) -> None:
        self.address = address
        self.size = size


def test_a_new_directory_is_closed_and_empty() -> None:
    directory = RegionDirectory()
    assert directory.is_open is False
    directory.open()
    assert directory.is_open is True
    directory.close()
    assert directory.is_open is False
    directory.remove(-1)
    assert directory.get(0) is None
    assert directory.find(0, 0) is None


def test_each_region_has_its_own_number() -> None:
    directory = RegionDirectory()
    first: Any = Span(1000, 10)
    second: Any = Span(2000, 10)
    assert [directory.add(first), directory.add(second)] == [0, 1]
    assert (directory.get(0), directory.get(1), directory.get(2)) == (first, second, None)
    directory.remove(0)
    assert directory.get(0) is None
    third: Any = Span(3000, 10)
    assert directory.add(third) == 2


def test_a_span_is_found_in_one_region() -> None:
    directory = RegionDirectory()
    empty: Any = Span(0, 0)
    first: Any = Span(1000, 10)
    second: Any = Span(1010, 10)
    for each in (empty, first, second):
        directory.add(each)
    assert directory.find(1000, 10) == (1, first)
    assert directory.find(1010, 10) == (2, second)
    assert directory.find(1009, 1) == (1, first)
    assert directory.find(1009, 2) is None
    assert directory.find(999, 2) is None
    assert directory.find(1019, 2) is None
    assert directory.find(0, 0) is None
    second.is_lost = True
    assert directory.find(1010, 1) is None
    del first
    assert directory.find(1000, 1) is None
