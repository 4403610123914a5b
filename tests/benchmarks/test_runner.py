"""A short run over all backends: what it measures, and what it leaves behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from helpers.signals import default_dispositions
from splitarrow import errors
from splitarrow.benchmarks import Options, Report, backend_names, run
from splitarrow.benchmarks.runner import Case

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("benchmark")]

KIB, MIB = 1 << 10, 1 << 20
SIZES = (MIB,)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def steps() -> list[tuple[int, int, str]]:
    """The calls of the progress callback."""
    return []


@pytest.fixture(scope="module")
def report(folder: Path, steps: list[tuple[int, int, str]]) -> Report:
    options = Options(
        batch_bytes=SIZES, rounds=1, total_bytes=4 * MIB, clients=(3, 2), directory=folder
    )
    return run(options, lambda *step: steps.append(step))


@pytest.fixture
def workers() -> list[psutil.Process]:
    """The child processes of this process before the test."""
    return psutil.Process().children(recursive=True)


@pytest.mark.long
def test_backends_on_request_are_compared_with_their_peers(folder: Path) -> None:
    """TLS, DoGet and Parquet: each client checks every batch in the round that warms up."""
    pairs = {
        "splitarrow-tls": "flight-tls",
        "splitarrow-do-get": "flight",
        "splitarrow-parquet": "flight-parquet",
    }
    names = (*pairs, *pairs.values())
    options = Options((MIB,), names, rounds=1, total_bytes=4 * MIB, clients=(1,), directory=folder)
    found = run(options)
    assert set(found.backends()) == set(names)
    for name, peer in pairs.items():
        result, baseline = found.find(name, MIB), found.find(peer, MIB)
        assert result is not None
        assert baseline is not None
        assert found.baseline(result) is baseline
        assert found.ratio(baseline) is None
    assert not list(folder.iterdir())


def test_every_backend_is_measured_with_every_size(report: Report) -> None:
    assert report.batch_sizes() == list(SIZES)
    assert report.backends() == [name for name in backend_names() if name not in report.skipped]
    assert {"splitarrow-tcp", "splitarrow-tcp-async", "inproc", "raw"} <= set(report.backends())
    for name in report.backends():
        for size in SIZES:
            result = report.find(name, size)
            assert result is not None
            assert report.find(name, size, "sum") is not None
            assert result.bytes == 4 * MIB
            assert result.rows == 4 * MIB // 32
            assert len(result.samples) == 1
            assert result.rate.median > 0
            assert result.first_batch is not None
            assert (result.server_cpu is None) == (name in ("inproc", "memcpy"))


def test_concurrent_clients_are_measured_together(report: Report) -> None:
    cases = [(r.backend, r.clients, r.bytes) for r in report.section("clients")]
    assert ("splitarrow-tcp", 1, MIB) in cases
    assert ("splitarrow-tcp", 2, 2 * MIB) in cases
    assert ("splitarrow-tcp", 3, 3 * MIB) in cases


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_memory_is_measured(report: Report) -> None:
    result = report.find("splitarrow-tcp", MIB)
    assert result is not None
    for field in ("client_peak_bytes", "client_anonymous_bytes", "server_peak_bytes"):
        assert (result.maximum(field) or 0) > MIB
    assert 0 < (result.maximum("server_anonymous_bytes") or 0) < 300 * MIB


def test_progress_counts_every_read(report: Report, steps: list[tuple[int, int, str]]) -> None:
    reads = [step for step in steps if "round" in step[2] or "warm-up" in step[2]]
    total = steps[-1][1]
    assert [done for done, _, _ in reads] == list(range(total))


def test_the_report_does_not_identify_the_host(report: Report) -> None:
    plain = json.loads(report.to_json())
    assert set(plain["versions"]) >= {"python", "pyarrow", "splitarrow"}
    assert os.uname().nodename not in json.dumps(plain["machine"])
    assert "directory" not in plain["options"]


def test_a_run_leaves_no_file_and_no_process(folder: Path, workers: list[psutil.Process]) -> None:
    run(Options(batch_bytes=(MIB,), backends=("raw",), rounds=1, total_bytes=MIB, directory=folder))
    assert list(folder.iterdir()) == []
    assert psutil.Process().children(recursive=True) == workers


def test_an_unknown_backend_is_an_error(folder: Path) -> None:
    with pytest.raises(errors.UsageError, match="'pigeon'; the backends are splitarrow-tcp"):
        run(Options(backends=("pigeon",), directory=folder))


def test_clients_can_sum_columns_and_read_tables(folder: Path) -> None:
    options = Options(
        batch_bytes=(64 * KIB,),
        backends=("splitarrow-tcp", "raw"),
        rounds=1,
        total_bytes=MIB,
        clients=(1,),
        consume=("sum", "numpy"),
        read="all",
        validate="full",
        directory=folder,
    )
    report = run(options)
    assert [result.section for result in report.results] == ["sizes"] * 4
    assert report.mean_ratio("raw") is None, "the baseline did not run"


def test_too_little_disk_space_is_an_error(folder: Path) -> None:
    with pytest.raises(errors.DatasetError, match="of free space"):
        run(Options(batch_bytes=(MIB,), total_bytes=1 << 50, directory=folder))
    assert list(folder.iterdir()) == []


def test_a_server_that_dies_is_an_error_and_leaves_nothing(
    folder: Path, workers: list[psutil.Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    measure = Case.measure

    def kill_server(case: Case, timeout: float, consume: Any, *, check: bool) -> object:
        if not check:
            assert case.server is not None
            psutil.Process(case.server.pid).kill()
        return measure(case, timeout, consume, check=check)

    monkeypatch.setattr(Case, "measure", kill_server)
    options = Options(
        batch_bytes=(MIB,), backends=("raw",), total_bytes=MIB, clients=(1,), directory=folder
    )
    with pytest.raises(errors.SplitArrowError, match="the server of raw exited with signal 9"):
        run(options)
    assert list(folder.iterdir()) == []
    assert psutil.Process().children(recursive=True) == workers


def test_an_interrupt_leaves_nothing(folder: Path) -> None:
    script = f"""if True:
        from pathlib import Path
        from splitarrow.benchmarks import Options, run
        options = Options(batch_bytes=(4096,), backends=("raw",), rounds=10**6,
                          total_bytes=1 << 20, directory=Path({str(folder)!r}))
        def show(done, total, step):
            if done == 3:
                print("running", flush=True)
        run(options, show)
    """
    with default_dispositions():
        process = subprocess.Popen(
            [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        workers = psutil.Process(process.pid).children(recursive=True)
        assert len(workers) == 2
        process.send_signal(signal.SIGINT)
        process.wait(60)
    assert process.returncode == -signal.SIGINT
    assert list(folder.iterdir()) == []
    _, alive = psutil.wait_procs(workers, timeout=60)
    assert alive == []
