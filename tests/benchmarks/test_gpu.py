"""The benchmark of GPUs, with a device that every host has."""

from __future__ import annotations

import pytest

import splitarrow
from helpers.trap_device import HostDevice, TrapMemory
from splitarrow.benchmarks import gpu


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


def test_a_host_without_cuda_gets_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: object) -> object:
        raise splitarrow.errors.UsageError("CUDA memory cannot be used on this host: no device")

    monkeypatch.setattr(gpu, "CudaMemory", refuse)
    with pytest.raises(SystemExit):
        gpu.main()
    assert capsys.readouterr().out == "CUDA memory cannot be used on this host: no device\n"
