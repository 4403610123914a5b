"""Record batches on a device, whose memory the processor cannot touch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from helpers.arrow_data import make_arrays_of_all_types
from helpers.trap_device import HostDevice, TrapDevice, TrapEvent, TrapMemory
from splitarrow.errors import LimitError, SplitArrowError, UsageError
from splitarrow.memory import DeviceBatch

ARRAYS = make_arrays_of_all_types()
NUMBERS = pa.record_batch({"n": pa.array(range(1000), pa.int32())})
MATRIX = pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float32(), 2))


def copy(batch: pa.RecordBatch, memory: TrapMemory | None = None) -> DeviceBatch:
    return (memory or TrapMemory()).open_copier().copy(batch)


@pytest.mark.parametrize("name", ARRAYS)
def test_no_type_needs_the_processor_to_touch_the_values(name: str) -> None:
    batch = pa.record_batch({"c": ARRAYS[name]})
    moved = copy(batch)
    moved.__arrow_c_device_array__()
    assert moved.device == "trap:0"
    assert moved.to_arrow().equals(batch)


@pytest.mark.parametrize("name", ARRAYS)
def test_the_device_interface_describes_every_type(name: str) -> None:
    batch = pa.record_batch({"c": ARRAYS[name]})
    moved = copy(batch, TrapMemory(device=HostDevice()))
    moved.wait()
    capsules = moved.__arrow_c_device_array__()
    del moved
    imported = pa.RecordBatch._import_from_c_device_capsule(*capsules)
    imported.validate(full=True)
    assert imported.equals(batch)


def test_the_memory_is_in_use_until_the_consumer_of_the_interface_drops_it() -> None:
    memory = TrapMemory()
    capsules = copy(NUMBERS, memory).__arrow_c_device_array__()
    assert memory.used_bytes
    del capsules
    assert memory.used_bytes == 0
    copy(NUMBERS, memory)
    assert memory.device.synchronizations == 1


def test_numbers_leave_through_dlpack() -> None:
    memory = TrapMemory(device=HostDevice())
    batch = copy(NUMBERS, memory)
    batch.wait()
    column: Any = batch["n"]
    del batch
    array = np.from_dlpack(column)
    del column
    assert memory.used_bytes
    assert array.tolist() == list(range(1000))
    assert array.dtype == np.int32
    assert array.flags.writeable
    del array
    assert memory.used_bytes == 0


def test_the_stream_of_a_consumer_waits_and_the_next_use_waits_for_it() -> None:
    memory = TrapMemory()
    column = copy(NUMBERS, memory)["n"]
    assert column.__dlpack_device__() == (TrapDevice.type_code, 0)
    column.__dlpack__(stream=7)
    column.__dlpack__()
    assert memory.device.delayed == [7, 1]
    del column
    assert sorted(memory.device.recorded) == [1, 7]
    assert memory.device.waits == []
    copy(NUMBERS, memory)
    assert len(memory.device.waits) == 2
    assert memory.device.synchronizations == 0


def test_a_consumer_that_names_no_stream_makes_the_device_synchronize() -> None:
    memory = TrapMemory()
    copy(NUMBERS, memory)["n"].__dlpack__(stream=-1)
    copy(NUMBERS, memory)
    assert memory.device.synchronizations == 1


def test_a_stream_that_cannot_be_recorded_makes_the_device_synchronize() -> None:
    class Capturing(TrapDevice):
        def record_stream(self, stream: int) -> TrapEvent:
            raise SplitArrowError("the stream captures a graph")

    memory = TrapMemory(device=Capturing())
    copy(NUMBERS, memory)["n"].__dlpack__(stream=7)
    copy(NUMBERS, memory)
    assert memory.device.synchronizations == 1


def test_a_device_without_cuda_has_no_cuda_interface() -> None:
    assert not hasattr(copy(NUMBERS)["n"], "__cuda_array_interface__")


def test_lists_of_a_fixed_size_are_arrays_of_more_dimensions() -> None:
    class FakeCuda(TrapDevice):
        name = "cuda:3"

    batch = copy(pa.record_batch({"m": MATRIX}), TrapMemory(device=FakeCuda()))
    interface = batch["m"].__cuda_array_interface__
    assert interface["shape"] == (2, 2)
    assert interface["typestr"] == "<f4"
    assert interface["data"][0] != 0
    assert interface["version"] == 3


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (pa.array([1, None]), "has 1 nulls"),
        (pa.array(["a"]), "has the type string"),
        (pa.array([True]), "has the type bool"),
        (pa.array([[1, None]], pa.list_(pa.int8(), 2)), "has 1 nulls"),
    ],
)
def test_other_columns_do_not_leave_as_arrays(array: pa.Array, reason: str) -> None:
    with pytest.raises(UsageError, match=f"the column 'c' {reason}"):
        copy(pa.record_batch({"c": array}))["c"].__dlpack__()


@pytest.mark.parametrize("rows", [0, 1, 5])
@pytest.mark.parametrize("max_version", [None, (1, 0)])
def test_lists_of_a_fixed_size_leave_through_dlpack_with_their_shape(
    rows: int, max_version: Any
) -> None:
    values = np.arange(rows * 6, dtype=np.int16).reshape(rows, 3, 2)
    inner = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), 2)
    column = pa.FixedSizeListArray.from_arrays(inner, 3)
    memory = TrapMemory(device=HostDevice())
    batch = copy(pa.record_batch({"m": column}), memory)
    batch.wait()
    exported = batch["m"]

    class Source:
        def __dlpack_device__(self) -> tuple[int, int]:
            return exported.__dlpack_device__()

        def __dlpack__(self, **_: Any) -> object:
            return exported.__dlpack__(max_version=max_version)

    array = np.from_dlpack(Source())  # type: ignore[arg-type]
    del batch
    assert array.tolist() == values.tolist()
    assert array.shape == (rows, 3, 2)


@pytest.mark.parametrize("request_", [{"copy": True}, {"dl_device": (1, 0)}])
def test_a_copy_is_refused(request_: dict[str, Any]) -> None:
    with pytest.raises(BufferError, match="on trap:0 is exported there, without a copy"):
        copy(NUMBERS)["n"].__dlpack__(**request_)


def test_consumers_of_old_versions_of_dlpack_are_served() -> None:
    batch = copy(NUMBERS)
    assert "dltensor_versioned" in repr(batch["n"].__dlpack__(max_version=(1, 0)))
    assert '"dltensor"' in repr(batch["n"].__dlpack__())


def test_a_batch_becomes_arrays_of_numpy() -> None:
    columns: dict[str, Any] = {"n": [1, 2], "m": MATRIX, "s": ["a", None]}
    batch = copy(pa.record_batch(columns))
    arrays = batch.to_numpy()
    assert list(arrays) == ["n", "m", "s"]
    assert arrays["n"].tolist() == [1, 2]
    assert arrays["m"].tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert arrays["s"].tolist() == ["a", None]
    assert batch["m"].to_numpy().shape == (2, 2)


def test_a_missing_column_is_named() -> None:
    with pytest.raises(KeyError, match="'x'"):
        copy(NUMBERS)["x"]


def test_another_schema_is_refused() -> None:
    batch = copy(NUMBERS)
    batch.__arrow_c_device_array__(batch.schema.__arrow_c_schema__())
    other = pa.schema([("n", pa.int64())])
    with pytest.raises(UsageError, match="its own schema only"):
        batch.__arrow_c_device_array__(other.__arrow_c_schema__())


def test_buffers_of_one_body_are_copied_as_one() -> None:
    sink = pa.BufferOutputStream()
    table = pa.table({"a": range(100), "b": [str(n) for n in range(100)]})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    (batch,) = pa.ipc.open_stream(sink.getvalue())
    memory = TrapMemory()
    assert copy(batch, memory).to_arrow().equals(batch)
    assert memory.device.queued == 1


def test_buffers_far_apart_are_copied_alone() -> None:
    values = np.arange(1 << 18, dtype=np.int32)
    large, small = pa.py_buffer(values.tobytes()), pa.py_buffer(values[:10].tobytes())
    buffers = [large.slice(0, 40), large.slice(1 << 19, 40), small]
    columns: list[Any] = [pa.Array.from_buffers(pa.int32(), 10, [None, b]) for b in buffers]
    batch = pa.record_batch(columns, names=["a", "b", "c"])
    memory = TrapMemory()
    assert copy(batch, memory).to_arrow().equals(batch)
    assert sorted(memory.device.sources) == sorted(each.address for each in buffers)


def test_host_memory_is_kept_until_its_copy_has_ended() -> None:
    class Watched:
        alive = True

        def __del__(self) -> None:
            Watched.alive = False

    data = np.arange(100_000)
    base = Watched()
    buffer = pa.foreign_buffer(data.ctypes.data, data.nbytes, base)
    array: Any = pa.Array.from_buffers(pa.int64(), len(data), [None, buffer])
    batch = pa.record_batch({"n": array})
    memory = TrapMemory()
    copier = memory.open_copier()
    moved = copier.copy(batch)
    del batch, array, buffer, base
    assert Watched.alive
    moved.wait()
    copier.copy(NUMBERS)
    assert not Watched.alive
    assert moved.to_arrow().column(0).to_numpy().tolist() == data.tolist()


def test_a_copier_ends_with_its_copies() -> None:
    memory = TrapMemory()
    copier = memory.open_copier()
    copier.copy(pa.record_batch({"n": [1, 2, 3]}))
    assert memory.device.copied == 0
    del copier
    assert memory.device.copied == 1


def test_the_error_beyond_the_budget_names_it() -> None:
    memory = TrapMemory(budget="8KiB")
    copier = memory.open_copier()
    held = [copier.copy(NUMBERS), copier.copy(NUMBERS)]
    with pytest.raises(LimitError, match="the budget of 8KiB of the memory of trap:0 is spent"):
        copier.copy(NUMBERS)
    held.clear()
    assert copier.copy(NUMBERS).to_arrow().equals(NUMBERS)


def test_people_see_where_a_batch_is() -> None:
    batch = copy(NUMBERS)
    assert repr(batch) == "<splitarrow.DeviceBatch: trap:0, 1,000 rows>\n  n: int32"
    assert "trap:0" in batch._repr_html_()
    assert repr(batch["n"]) == "<splitarrow.DeviceColumn 'n': int32, 1,000 rows>"
    assert len(batch) == len(batch["n"]) == 1000
