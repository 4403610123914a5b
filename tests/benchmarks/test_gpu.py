"""The benchmark of GPUs, with a device that every host has."""

from __future__ import annotations

import io
import sys
from types import SimpleNamespace

import pytest
from rich.console import Console

import splitarrow
from helpers.trap_device import HostDevice, TrapDevice, TrapMemory
from splitarrow.benchmarks import gpu
from splitarrow.memory import imports


def test_every_way_delivers_all_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "ROUNDS", 1)
    memory = TrapMemory(device=HostDevice())
    figure = gpu.measure_size(memory, 1 << 20, 4 << 20)
    assert figure.batch_bytes == 1 << 20
    assert list(figure.streams) == ["tcp", "shm"]
    assert min(figure.plain, figure.copier, *figure.streams.values()) > 0
    batch = gpu.make_batch(1 << 20, memory)
    assert gpu.copy_plainly(memory, batch, 3) == gpu.copy_batches(memory, batch, 3) == 3 << 20
    assert memory.used_bytes == 0


def test_the_share_of_waiting_counts_all_steps() -> None:
    memory = TrapMemory(device=HostDevice())
    batches = [memory.open_copier().copy(gpu.make_batch(64 << 10, memory)) for _ in range(3)]
    steps: list[object] = []
    assert 0 <= gpu.measure_waiting(iter(batches), steps.append) <= 1
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


def test_the_report_names_every_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "ROUNDS": 1,
        "BATCH_BYTES": (1 << 20,),
        "TOTAL_BYTES": 2 << 20,
        "SERVED_BYTES": 1 << 20,
        "STEPS": 2,
        "STEP_SECONDS": 0.001,
    }.items():
        monkeypatch.setattr(gpu, name, value)

    class Readable(HostDevice):
        type_code = TrapDevice.type_code

    memory = TrapMemory(device=Readable())
    monkeypatch.setitem(imports.DEVICES, Readable.type_code, lambda _: memory.device)
    console = Console(record=True, width=100, file=io.StringIO())
    gpu.report(memory, console)
    text = console.export_text()
    assert "1 MiB" in text
    assert "a dataset on the device, read into host memory: tcp " in text
    assert "2 steps of 1 ms waited for " in text
