"""The directory of the regions that a process can pass to another one."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.waiting import wait_until
from splitarrow.errors import DatasetError
from splitarrow.transport.memory.mapped_region import MappedRegion
from splitarrow.transport.memory.region_directory import REGIONS


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
