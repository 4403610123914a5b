"""The benchmark of GPUs, with a device that every host has."""

from __future__ import annotations

import io
import json
import multiprocessing
import sys
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

import splitarrow
from helpers.trap_device import HostDevice, TrapDevice, TrapMemory
from splitarrow.benchmarks.studies import gpu
from splitarrow.memory import imports


def test_every_way_delivers_all_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "ROUNDS", 1)
    memory = TrapMemory(device=HostDevice())
    figure = gpu.measure_size(memory, 1 << 20, 4 << 20)
    assert figure.batch_bytes == 1 << 20
    assert list(figure.streams) == ["tcp", "shm"]
    assert min(figure.plain, figure.copier, *figure.streams.values()) > 0
    batch = gpu.make_batch(1 << 20, memory)
    targets = [memory.device.allocate(1 << 20)]
    assert gpu.copy_plainly(memory, batch, 3, targets) == 3 << 20
    assert gpu.copy_batches(memory, batch, 3) == 3 << 20
    assert memory.used_bytes == 0


def test_the_share_of_waiting_counts_all_steps() -> None:
    memory = TrapMemory(device=HostDevice())
    batches = [memory.open_copier().copy(gpu.make_batch(64 << 10, memory)) for _ in range(3)]
    steps: list[object] = []
    share, first = gpu.measure_waiting(iter(batches), steps.append)
    assert 0 <= share <= 1
    assert first > 0
    assert steps == batches


@pytest.mark.parametrize("arguments", [[], ["--check"]])
def test_a_host_without_cuda_gets_one_line(
    arguments: list[str], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: object) -> object:
        raise splitarrow.errors.UsageError("CUDA memory cannot be used on this host: " + 40 * "no ")

    monkeypatch.setattr(gpu, "CudaMemory", refuse)
    assert gpu.main(arguments) == 2
    output = capfd.readouterr()
    assert (output.out, output.err.count("\n")) == ("", 1)
    assert output.err.startswith("CUDA memory cannot be used on this host: no no")


@pytest.mark.parametrize(("has_device", "status"), [(False, 2), (True, 0)])
def test_pytorch_without_cuda_gets_one_line(
    has_device: bool,
    status: int,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    library = SimpleNamespace(
        __version__="9.9+cpu", cuda=SimpleNamespace(is_available=lambda: has_device)
    )
    monkeypatch.setitem(sys.modules, "torch", library)
    monkeypatch.setattr(gpu, "CudaMemory", TrapMemory)
    assert gpu.main(["--check"]) == status
    output = capfd.readouterr()
    assert (output.out, output.err.count("\n")) == ("", int(not has_device))
    assert has_device or output.err.startswith("PyTorch 9.9+cpu finds no CUDA device; ")


def test_the_report_names_every_figure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in {
        "ROUNDS": 1,
        "BATCH_BYTES": (1 << 20,),
        "TOTAL_BYTES": 2 << 20,
        "SERVED_BYTES": 1 << 20,
        "SHARED_BYTES": 1 << 20,
        "STEPS": 2,
        "STEP_SECONDS": 0.001,
    }.items():
        monkeypatch.setattr(gpu, name, value)

    class Readable(HostDevice):
        type_code = TrapDevice.type_code

    memory, other = TrapMemory(device=Readable()), TrapMemory(device=Readable())
    devices = [memory.device, other.device]
    other.device.index = 1
    monkeypatch.setitem(imports.DEVICES, Readable.type_code, devices.__getitem__)
    console = Console(record=True, width=200, file=io.StringIO())
    monkeypatch.setattr(gpu, "shared_data", serve_in_thread)
    rows = gpu.report(gpu.measure_all(memory, lambda: other), console, tmp_path / "a" / "gpu.json")
    text = console.export_text()
    cases = [
        "host to device, batches of 1 MiB",
        "tcp to device, batches of 1 MiB",
        "shm to device, batches of 1 MiB",
        "device to host over tcp",
        "device to host over ucx",
        "device to device, from another process",
        "wait of 2 steps of 1 ms",
    ]
    assert [row.case for row in rows] == cases
    assert all(case in text for case in cases)
    assert text.count("the goal is at least 90%: ") == 2
    assert text.count("the goal is at most 2%: ") == 1
    written = json.loads((tmp_path / "a" / "gpu.json").read_text())
    assert [row["case"] for row in written] == cases


def test_a_section_that_fails_does_not_end_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> Iterator[gpu.Row]:
        raise RuntimeError("out of order")

    def succeed(_: object) -> Iterator[gpu.Row]:
        yield gpu.Row("done", 0.5)

    for name in ("measure_host_to_device", "measure_device_to_host", "measure_sharing"):
        monkeypatch.setattr(gpu, name, fail)
    monkeypatch.setattr(gpu, "measure_steps", succeed)
    rows = list(gpu.measure_all(TrapMemory()))
    assert [row.value for row in rows] == [None, None, None, 0.5]
    assert rows[0].cells == ("host to device", "", "", "failed: RuntimeError: out of order")


@contextmanager
def serve_in_thread(open_memory: Any, nbytes: int) -> Generator[str]:
    ours, theirs = multiprocessing.Pipe()
    thread = threading.Thread(target=gpu.serve_shared, args=(theirs, open_memory, nbytes))
    thread.start()
    try:
        yield ours.recv()
    finally:
        ours.close()
        thread.join()


def test_goals_are_compared_in_both_directions() -> None:
    assert gpu.describe_goal(0.95, 0.9) == "95.0%; the goal is at least 90%: reached"
    assert gpu.describe_goal(0.85, 0.9) == "85.0%; the goal is at least 90%: missed"
    assert gpu.describe_goal(0.03, 0.02, at_most=True) == "3.0%; the goal is at most 2%: missed"


def test_data_that_was_copied_to_the_host_is_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    class Readable(HostDevice):
        type_code = TrapDevice.type_code
        opens_own_exports = False

    memory, other = TrapMemory(device=Readable()), TrapMemory(device=Readable())
    monkeypatch.setitem(imports.DEVICES, Readable.type_code, lambda _: other.device)
    with (
        serve_in_thread(lambda: other, 1 << 20) as uri,
        pytest.raises(splitarrow.errors.UsageError, match="could not be opened by CUDA IPC"),
    ):
        gpu.copy_shared(uri, memory, memory.device.allocate(1 << 20), 1)
