"""Reads of every type into page-locked memory and a device, by every way to read and to end."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import trustme

from helpers.arrow_data import make_arrays_of_all_types
from helpers.cuda_cases import ENDS, Zygote
from helpers.files import write_file
from splitarrow.testing import Daemon

pytestmark = pytest.mark.gpu

DIMENSIONS: dict[str, tuple[str, ...]] = {
    "memory": ("pinned", "device"),
    "scheme": ("tcp", "tcp+tls", "shm", "ucx", "do_get"),
    "mode": ("sync", "async"),
    "process": ("fork", "spawn", "threads"),
    "end": ENDS,
}
CASES = [
    dict(zip(DIMENSIONS, each, strict=True)) for each in itertools.product(*DIMENSIONS.values())
]


def list_pairs(case: dict[str, str]) -> set[tuple[str, str]]:
    items = [f"{name}={value}" for name, value in case.items()]
    return set(itertools.combinations(items, 2))


def sample_cases() -> list[dict[str, str]]:
    """Return cases in which every pair of values occurs."""
    missing = set[tuple[str, str]]().union(*map(list_pairs, CASES))
    chosen: list[dict[str, str]] = []
    while missing:
        best = max(CASES, key=lambda case: len(list_pairs(case) & missing))
        chosen.append(best)
        missing -= list_pairs(best)
    return chosen


class Files:
    """The files that daemons serve: one with all types, and one for each type."""

    def __init__(self, folder: Path) -> None:
        arrays = make_arrays_of_all_types()
        rows = min(map(len, arrays.values()))
        table = pa.table({name: array.slice(0, rows) for name, array in arrays.items()})
        numbers = pa.table({"n": pa.array(range(40_000), pa.int64())})
        self.joined = {
            "all": str(write_file(folder / "all.arrow", table)),
            "numbers": str(write_file(folder / "numbers.arrow", numbers, batch_rows=10_000)),
        }
        self.each = {
            f"t{index}": str(write_file(folder / f"t{index}.arrow", pa.table({name: array})))
            for index, (name, array) in enumerate(arrays.items())
        }
        authority = trustme.CA()
        self.ca = str(folder / "ca.pem")
        authority.cert_pem.write_to_path(self.ca)
        self.certificate = folder / "server.pem"
        authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(
            self.certificate
        )

    def start_daemon(self) -> Daemon:
        return Daemon(
            self.joined | self.each,
            listen=[f"{scheme}://127.0.0.1:0" for scheme in ("tcp", "tcp+tls", "ucx")] + ["shm://"],
            control="grpc://127.0.0.1:0",
            tls_cert=self.certificate,
        )


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("files"))


@pytest.fixture(scope="module")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    zygote = Zygote(tmp_path_factory.mktemp("zygote") / "log", CHECKING_DRIVER_DELAY="500")
    yield zygote
    zygote.close()


def run(zygote: Zygote, case: dict[str, str], daemon: Daemon, files: Files, each: bool) -> None:
    names = files.each if each else files.joined
    datasets = daemon.ready["datasets"]
    request: dict[str, Any] = {
        **case,
        "files": names,
        "uris": {name: datasets[name] for name in names},
        "control": str(daemon.control_uri),
        "ca": files.ca,
        "batch_rows": 10_000,
    }
    zygote.start(request)
    answer = zygote.wait()
    if answer == "ready":
        daemon.stop()
        zygote.resume()
        answer = zygote.wait()
        daemon.start()
    assert answer == ("-9" if case["end"] == "kill" else "0"), zygote.read_log()[-3000:]


@pytest.fixture(scope="module")
def daemon(files: Files) -> Iterator[Daemon]:
    with files.start_daemon() as daemon:
        yield daemon


@pytest.mark.parametrize("case", sample_cases(), ids=lambda case: "-".join(case.values()))
def test_pairs(zygote: Zygote, case: dict[str, str], daemon: Daemon, files: Files) -> None:
    run(zygote, case, daemon, files, each=False)


@pytest.mark.long
@pytest.mark.timeout(6 * 3600)
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(case.values()))
def test_every_combination(
    zygote: Zygote, case: dict[str, str], daemon: Daemon, files: Files
) -> None:
    run(zygote, case, daemon, files, each=True)
