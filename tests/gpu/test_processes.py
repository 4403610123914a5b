"""What a process does to devices: its contexts, its forks, and its end."""

from __future__ import annotations

import pytest

from helpers import cuda

pytestmark = pytest.mark.gpu

START = """
    import gc, os, sys
    import numpy as np
    import pyarrow as pa
    import splitarrow
    from splitarrow.memory import CudaMemory, PinnedMemory

    table = pa.table({"n": np.arange(100_000)})

    def read(memory):
        with (
            splitarrow.serve({"d": table}, listen="tcp://127.0.0.1:0") as server,
            splitarrow.open(server.uri("d"), batch_rows=10_000, memory=memory) as stream,
        ):
            return list(stream)
"""


@pytest.mark.usefixtures("checking_driver")
def test_memory_of_one_device_takes_nothing_of_another() -> None:
    code = (
        START
        + """
    from cuda.bindings import driver

    batches = read(CudaMemory(1))
    assert batches[0].device == "cuda:1"
    print([driver.cuDevicePrimaryCtxGetState(index)[2] for index in range(3)])
    """
    )
    assert cuda.check_program(code, CHECKING_DRIVER_DEVICES="3") == "[0, 1, 0]\n"


@pytest.mark.parametrize("memory", ["pinned", "cuda:0"])
def test_a_forked_child_is_told_to_be_spawned(memory: str) -> None:
    code = (
        START
        + """
    kept, copier = read(sys.argv[1]), CudaMemory(budget="8MiB").open_copier()
    copier.copy(table.to_batches()[0])
    sys.stdout.flush()
    if os.fork() == 0:
        try:
            if sys.argv[1] == "pinned":
                splitarrow.memory.pinned.default_pinned_memory().allocate(1 << 16)
            else:
                read(sys.argv[1])
        except splitarrow.errors.UsageError as error:
            print(error, flush=True)
        kept.clear()
        del copier
        gc.collect()
        # As at the end of the interpreter.
        splitarrow.memory.pinned.default_pinned_memory.cache_clear()
        splitarrow.memory.device_memory.default_cuda_memory.cache_clear()
        gc.collect()
        os._exit(0)
    os.wait()
    kept.clear()
    assert len(read(sys.argv[1])) == 10
    """
    )
    output = cuda.check_program(code, memory)
    assert "forked from one that had used CUDA" in output
    assert "start it with the method spawn" in output


@pytest.mark.parametrize("memory", ["pinned", "cuda:0"])
@pytest.mark.parametrize("owner", ["program", "pyarrow"])
def test_the_end_of_the_interpreter_is_silent(memory: str, owner: str) -> None:
    """What a module owns that was imported early ends after the globals of splitarrow."""
    code = (
        START
        + """
    kept = read(sys.argv[1])
    own = [PinnedMemory("8MiB"), CudaMemory(budget="8MiB")]
    idle = [PinnedMemory("8MiB"), CudaMemory(budget="8MiB")]
    idle[0].allocate(1)
    idle[1].open_copier().copy(table.to_batches()[0])
    copier = own[1].open_copier()
    held = copier.copy(table.to_batches()[0])
    capsule = held["n"].__dlpack__(stream=1)
    block = own[0].allocate(1)
    if sys.argv[2] == "pyarrow":
        pa.kept = [kept, own, idle, copier, held, capsule, block]
        del kept, own, idle, copier, held, capsule, block
    """
    )
    assert cuda.check_program(code, memory, owner) == ""
