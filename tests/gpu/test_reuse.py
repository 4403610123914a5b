"""Memory that a program or a device still reads is not used again."""

from __future__ import annotations

import gc
import threading
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import splitarrow
from helpers import cuda
from splitarrow.errors import SplitArrowError
from splitarrow.memory import CudaMemory, PinnedMemory
from splitarrow.memory.device import load_driver
from splitarrow.memory.interfaces import DLTensor, find_pointer

pytestmark = pytest.mark.gpu

ROWS, BATCH_ROWS = 400_000, 20_000


def make_batch(value: int, rows: int = 100_000) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(np.full(rows, value, "int64"))})


def find_address(capsule: object) -> int:
    tensor = DLTensor.from_address(find_pointer(capsule, b"dltensor"))
    assert tensor.data is not None
    return tensor.data


@pytest.mark.parametrize("budget", ["8MiB", "256MiB"])
@pytest.mark.parametrize("scheme", ["tcp", "ucx"])
def test_page_locked_batches_may_be_dropped_while_they_are_copied(scheme: str, budget: str) -> None:
    table = pa.table({"n": pa.array(np.arange(ROWS))})
    program = cuda.Program()
    stream, target, copied = program.open_stream(), program.allocate(ROWS * 8), 0
    with (
        splitarrow.serve({"data": table}, listen=f"{scheme}://127.0.0.1:0") as server,
        splitarrow.open(
            server.uri("data"), batch_rows=BATCH_ROWS, memory=PinnedMemory(budget)
        ) as batches,
    ):
        for batch in batches:
            buffer: Any = batch.column(0).buffers()[1]
            # As tensor.to("cuda", non_blocking=True) does.
            program.copy_in(target + copied, buffer.address, buffer.size, stream)
            copied += buffer.size
            del batch, buffer
    program.synchronize(stream)
    assert (program.read(target, "int64", ROWS) == np.arange(ROWS)).all()
    program.free(target)


@pytest.mark.parametrize("stream", [1, cuda.Program.PER_THREAD])
def test_another_thread_may_drop_what_a_default_stream_reads(stream: int) -> None:
    program = cuda.Program()
    copier = CudaMemory(budget="16MiB").open_copier()
    target = program.allocate(800_000)
    batch = copier.copy(make_batch(1))
    held: list[object] = [batch["n"].__dlpack__(stream=stream)]
    program.occupy(stream)
    program.copy_within(target, find_address(held[0]), 800_000, stream)
    del batch
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    copier.copy(make_batch(2)).wait()
    program.synchronize(stream)
    assert (program.read(target, "int64", 100_000) == 1).all()
    program.free(target)


def test_a_block_is_freed_after_its_copy() -> None:
    copier = CudaMemory(budget="1MiB", staging=PinnedMemory("64MiB")).open_copier()
    batch = copier.copy(make_batch(1))
    for rows in (80_000, 60_000, 100_000):  # each needs the memory of the one before
        del batch
        batch = copier.copy(make_batch(rows, rows))
    assert (np.asarray(batch.to_arrow()["n"]) == 100_000).all()


def test_a_copier_that_is_garbage_waits_for_its_copies() -> None:
    memory = CudaMemory(budget="16MiB")
    garbage: list[Any] = [memory.open_copier()]
    garbage[0].copy(make_batch(1))
    garbage.append(garbage)
    del garbage
    gc.collect()  # destroys the events before it asks the copier to end
    assert memory.used_bytes == 0


def test_memory_and_its_device_may_be_garbage_together() -> None:
    code = """
        import gc
        import numpy as np
        import pyarrow as pa
        from helpers import cuda
        from splitarrow.memory import CudaMemory, PinnedMemory

        program = cuda.Program()
        memory = CudaMemory(budget="16MiB", staging=PinnedMemory("16MiB"))
        memory.open_copier().copy(pa.record_batch({"n": np.arange(100_000)}))
        garbage = [memory]
        garbage.append(garbage)
        del memory, garbage
        gc.collect()
        gc.collect()  # what the first collection has dropped
        print(sum(cuda.count_live().values()) if cuda.is_checking() else 0)
    """
    assert cuda.check_program(code) == "0\n"


def test_reads_do_not_disturb_the_capture_of_a_graph() -> None:
    # In a process of its own: garbage of other tests may wait for the device at any time.
    code = """
        import threading
        import numpy as np
        import pyarrow as pa
        import splitarrow
        from helpers import cuda
        from splitarrow.memory import CudaMemory, PinnedMemory
        from splitarrow.memory.device import load_driver

        stream = cuda.Program().open_stream()
        table = pa.table({"n": np.arange(400_000)})
        memory = CudaMemory(budget="16MiB", staging=PinnedMemory("32MiB"))
        rows = 0
        with splitarrow.serve({"data": table}, listen="tcp://127.0.0.1:0") as server:

            def read():
                global rows
                uri = server.uri("data")
                with splitarrow.open(uri, batch_rows=20_000, memory=memory) as batches:
                    for batch in batches:
                        batch.wait()
                        rows += batch.num_rows

            everywhere = load_driver().CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
            cuda.call("cuStreamBeginCapture", stream, everywhere)
            thread = threading.Thread(target=read)
            thread.start()
            thread.join()
            cuda.call("cuStreamEndCapture", stream)
        print(rows)
    """
    assert cuda.check_program(code) == "400000\n"


def test_memory_that_could_not_be_waited_for_is_waited_for_later() -> None:
    program = cuda.Program()
    stream, memory = program.open_stream(), CudaMemory(budget="1MiB")
    target = program.allocate(800_000)
    copier = memory.open_copier()
    batch = copier.copy(make_batch(1))
    batch.wait()
    source: Any = batch["n"].__dlpack__(stream=-1)  # on a stream that only the program knows
    gc.collect()  # before the capture, which it could end
    everywhere = load_driver().CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
    captured = program.open_stream()
    program.occupy(stream)
    program.copy_within(target, find_address(source), 800_000, stream)
    cuda.call("cuStreamBeginCapture", captured, everywhere)
    del batch, source
    with pytest.raises(SplitArrowError, match="capturing"):
        copier.copy(make_batch(2))
    with pytest.raises(AssertionError, match="INVALIDATED"):
        cuda.call("cuStreamEndCapture", captured)
    copier.copy(make_batch(3)).wait()
    program.synchronize(stream)
    assert (program.read(target, "int64", 100_000) == 1).all()
    program.free(target)
