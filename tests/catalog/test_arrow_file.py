"""Arrow IPC files: messages leave as they lie, or are encoded anew; bad files are one error."""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from splitarrow.errors import DatasetError
from splitarrow.formats.arrow.file import find_footer, read_footer
from splitarrow.formats.arrow.message import encapsulate
from splitarrow.protocol.request import Request
from splitarrow.server.catalog.arrow_file import ArrowFileDataset
from splitarrow.server.catalog.base import GROUP_BYTES, Encoding
from splitarrow.server.catalog.kinds import open_file

from ..formats.footers import footer
from ..property.arrow_data import arrays_of_all_types
from ..protocol.crafting import BIG, plain_batch, schema_of_ints
from .reading import PLAIN, asking, numbers, rows_without_columns, serve, table_of, write_file

ARRAYS = arrays_of_all_types()
CODECS = [None, "lz4", "zstd"]


def large(batches: int = 3, rows: int = 30_000) -> list[pa.RecordBatch]:
    return [
        pa.record_batch({"n": pa.array(range(i, i + rows), pa.int64())}) for i in range(batches)
    ]


def bodies_in(path: Path) -> list[tuple[bytes, bytes]]:
    """Return metadata and body of each message behind the schema, as they lie in a file."""
    data = path.read_bytes()
    offset, length = find_footer(data[-10:], len(data))
    found = read_footer(data[offset : offset + length], offset)
    messages: list[tuple[bytes, bytes]] = []
    for at, metadata, body in (*found.dictionaries, *found.record_batches):
        start = at + (8 if data[at : at + 4] == b"\xff" * 4 else 4)
        end = at + metadata
        messages.append((data[start:end], data[end : end + body]))
    return messages


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("make", [numbers, large])
def test_messages_leave_as_they_lie(
    tmp_path: Path, make: Callable[[], list[pa.RecordBatch]], legacy: bool, codec: str | None
) -> None:
    sent = make()
    path = write_file(tmp_path / "x.arrow", sent, compression=codec, use_legacy_format=legacy)
    dataset = open_file(path)
    served = serve(dataset)
    assert not served.blocking
    got = [(bytes(m.metadata), b"".join(m.body or ())) for m in served.messages[1:]]
    assert got == bodies_in(path)
    assert served.batches == sent
    assert served.rows == dataset.rows == sum(batch.num_rows for batch in sent)
    assert (dataset.kind, dataset.nbytes) == ("arrow file", path.stat().st_size)
    assert dataset.schema.equals(sent[0].schema, check_metadata=True)


def test_large_bodies_leave_as_regions_and_small_ones_together(tmp_path: Path) -> None:
    served = serve(open_file(write_file(tmp_path / "large.arrow", large())))
    assert served.regions == 3
    served = serve(open_file(write_file(tmp_path / "small.arrow", numbers(300))))
    assert served.regions == 0
    assert [len(group) for group in served.groups[:1]] == [1]
    total = sum(m.body_length + len(m.metadata) + 8 for m in served.messages[1:])
    assert len(served.groups) - 1 <= total // GROUP_BYTES + 1
    assert served.table == table_of(numbers(300))


def test_small_and_large_bodies_in_turn(tmp_path: Path) -> None:
    sent = [batch for pair in zip(large(5, 10), large(5), strict=True) for batch in pair]
    served = serve(open_file(write_file(tmp_path / "x.arrow", sent)))
    assert served.batches == sent
    assert served.regions == 5


def test_blocks_in_any_order(tmp_path: Path) -> None:
    path = write_file(tmp_path / "x.arrow", numbers(6))
    data = bytearray(path.read_bytes())
    offset, length = find_footer(bytes(data[-10:]), len(data))
    blocks = read_footer(bytes(data[offset : offset + length]), offset).record_batches
    packed = blocks.packed
    at = data.index(packed)
    turned = [packed[start : start + 24] for start in range(0, len(packed), 24)][::-1]
    data[at : at + len(packed)] = b"".join(turned)
    path.write_bytes(data)
    assert serve(open_file(path)).batches == numbers(6)[::-1]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("name", ARRAYS)
def test_every_type(tmp_path: Path, name: str, codec: str | None) -> None:
    array = ARRAYS[name]
    sent = [pa.record_batch({"x": array[:0]}), pa.record_batch({"y": array, "x": array})]
    schema = sent[1].schema
    batch = sent[1]
    path = write_file(
        tmp_path / "x.arrow", [batch, batch.slice(1, 3), batch.slice(0, 0)], compression=codec
    )
    dataset = open_file(path)
    with pa.ipc.open_file(str(path)) as reader:
        want = reader.read_all()
    for asked in asking(
        {},
        {"compression": "zstd"},
        {"compression": "none"},
        {"batch_rows": 2},
        {"limit": 6},
        {"columns": ("x", "y"), "limit": 7, "batch_rows": 3, "compression": "lz4"},
        {"columns": ("x",)},
    ):
        served = serve(dataset, **asked)
        columns = list(asked.get("columns", schema.names))
        expected = want.select(columns).slice(0, asked.get("limit"))
        assert served.schema.equals(expected.schema, check_metadata=True)
        assert served.table.equals(expected)
        assert served.rows == expected.num_rows
        most = asked.get("batch_rows", 1 << 60)
        assert all(got.num_rows <= most for got in served.batches)


def test_no_batch_and_no_column(tmp_path: Path) -> None:
    schema = pa.schema([("a", pa.int8())], metadata={"k": "v"})
    dataset = open_file(write_file(tmp_path / "rows.arrow", [], schema))
    for asked in asking({}, {"columns": ("a",)}, {"compression": "lz4"}, {"limit": 3}):
        served = serve(dataset, **asked)
        assert (len(served.messages), served.rows) == (1, 0)
        assert served.schema.equals(schema, check_metadata=True)
    batch = rows_without_columns(7)
    dataset = open_file(write_file(tmp_path / "columns.arrow", [batch]))
    assert serve(dataset).rows == serve(dataset, compression="lz4").rows == dataset.rows == 7
    assert serve(dataset, limit=3).rows == 3


@pytest.mark.parametrize("lies", CODECS)
@pytest.mark.parametrize("wanted", [None, "none", "lz4", "zstd"])
def test_it_is_encoded_anew_only_if_it_has_to_be(
    tmp_path: Path, lies: str | None, wanted: str | None
) -> None:
    sent = [pa.record_batch({"n": [7] * 5000}) for _ in range(2)]
    dataset = open_file(write_file(tmp_path / "x.arrow", sent, compression=lies))
    same = wanted in (None, lies or "none")
    for served in (
        serve(dataset, compression=wanted),
        serve(dataset, Encoding(compression=wanted)),
        serve(
            dataset,
            Encoding(compression="lz4", batch_rows=9),
            compression=wanted or lies or "none",
            batch_rows=5000,
        ),
    ):
        assert served.blocking != same
        assert served.batches == sent
        smaller = (wanted or lies) in ("lz4", "zstd")
        assert all((m.body_length < 20_000) == smaller for m in served.messages[1:])


def test_limits_that_change_nothing_leave_it_as_it_lies(tmp_path: Path) -> None:
    dataset = open_file(write_file(tmp_path / "x.arrow", numbers()))
    for asked in asking({"limit": 300}, {"batch_rows": 100}, {"columns": ("n", "t", "d")}):
        assert not serve(dataset, **asked).blocking
    for asked in asking({"limit": 299}, {"batch_rows": 99}, {"columns": ("n", "d", "t")}):
        assert serve(dataset, **asked).blocking


def test_columns_come_in_the_order_asked_for(tmp_path: Path) -> None:
    dataset = open_file(write_file(tmp_path / "x.arrow", numbers()))
    served = serve(dataset, columns=("d", "n"))
    assert served.table == table_of(numbers()).select(["d", "n"])
    assert served.blocking


def test_custom_metadata_of_messages_stays(tmp_path: Path) -> None:
    path, batch = tmp_path / "x.arrow", numbers(1)[0]
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch, custom_metadata={b"k": b"v"})
    for asked in asking({}, {"compression": "lz4"}, {"columns": ("n",)}):
        with pa.ipc.open_stream(serve(open_file(path), **asked).stream) as reader:
            got = reader.read_next_batch_with_custom_metadata()
        assert got.custom_metadata == {b"k": b"v"}


def test_integration_files_of_other_versions(arrow_test_data: Path) -> None:
    paths = sorted((arrow_test_data / "arrow-ipc-stream" / "integration").glob("*/*.arrow_file"))
    assert len(paths) > 30
    for path in paths:
        with pa.ipc.open_file(str(path)) as reader:
            want = reader.read_all()
        dataset = open_file(path)
        served = serve(dataset)
        assert not served.blocking, path
        anew = serve(dataset, compression="lz4" if "zstd" in path.name else "zstd")
        names = tuple(dict.fromkeys(want.schema.names[::-1]))
        if len(names) == len(want.schema):
            turned = serve(dataset, columns=names, limit=5)
            assert turned.table.equals(want.select(list(names)).slice(0, 5)) or turned.rows == 5
        for got in (served, anew, serve(dataset, batch_rows=3)):
            assert got.schema.equals(want.schema, check_metadata=True), path
            assert got.table.equals(want) or got.table.to_pydict() == want.to_pydict(), path
        assert served.rows == dataset.rows == want.num_rows, path


def test_flights(vega_test_data: Path) -> None:
    path = vega_test_data / "flights-200k.arrow"
    with pa.ipc.open_file(str(path)) as reader:
        want = reader.read_all()
    dataset = open_file(path)
    assert serve(dataset).table.equals(want)
    assert serve(dataset, columns=("delay",), limit=1000).table.equals(
        want.select(["delay"]).slice(0, 1000)
    )


def big_endian_file(path: Path) -> Path:
    """Write a file of one int32 column, big-endian, which pyarrow cannot."""
    body = struct.pack(">16i", *range(16))
    schema = encapsulate(schema_of_ints(["a"], endianness=BIG))
    batch = encapsulate(plain_batch(16, [(0, 0), (0, 64)], 64))
    front = b"ARROW1\0\0" + schema
    data = footer([(len(front), len(batch), 64)], endianness=1, columns=["a"])
    end = data + len(data).to_bytes(4, "little") + b"ARROW1"
    path.write_bytes(front + batch + body + b"\xff\xff\xff\xff\0\0\0\0" + end)
    return path


def test_big_endian_data_passes_through(tmp_path: Path) -> None:
    dataset = open_file(big_endian_file(tmp_path / "x.arrow"))
    served = serve(dataset)
    assert not served.blocking
    assert served.messages[1].body == [struct.pack(">16i", *range(16))]
    assert served.table.to_pydict() == {"a": list(range(16))}
    # Encoded anew, it is in the byte order of this machine, and says so.
    assert serve(dataset, limit=3).table.to_pydict() == {"a": [0, 1, 2]}


def test_a_file_without_a_schema_message_is_encoded_anew(tmp_path: Path) -> None:
    path = write_file(tmp_path / "x.arrow", numbers())
    data = bytearray(path.read_bytes())
    data[16:80] = bytes(64)
    path.write_bytes(data)
    served = serve(open_file(path))
    assert served.blocking
    assert served.batches == numbers()


def test_a_file_that_replaces_a_dictionary_is_refused(tmp_path: Path) -> None:
    path = write_file(tmp_path / "x.arrow", numbers())
    data = bytearray(path.read_bytes())
    offset, length = find_footer(bytes(data[-10:]), len(data))
    found = read_footer(bytes(data[offset : offset + length]), offset)
    twice = footer(list(found.record_batches), [found.dictionaries[0]] * 2, columns=["n", "t", "d"])
    path.write_bytes(data[:offset] + twice + len(twice).to_bytes(4, "little") + b"ARROW1")
    with pytest.raises(DatasetError, match=r"x\.arrow .*dictionary batch 1 replaces"):
        open_file(path)
    batches = footer(list(found.record_batches), [found.record_batches[0]], columns=["n", "t", "d"])
    path.write_bytes(data[:offset] + batches + len(batches).to_bytes(4, "little") + b"ARROW1")
    with pytest.raises(DatasetError, match="dictionary batch 0 is none"):
        open_file(path)


def test_a_truncated_file_is_refused_wherever_it_ends(tmp_path: Path) -> None:
    whole = write_file(tmp_path / "x.arrow", numbers()).read_bytes()
    path = tmp_path / "cut.arrow"
    for size in sorted({*range(1, len(whole), 97), *range(len(whole) - 40, len(whole))}):
        path.write_bytes(whole[:size])
        with pytest.raises(DatasetError, match=r"cut\.arrow") as raised:
            ArrowFileDataset(path)
        assert "\n" not in str(raised.value)


def test_a_footer_of_garbage_is_refused(tmp_path: Path) -> None:
    whole = write_file(tmp_path / "x.arrow", numbers()).read_bytes()
    offset, length = find_footer(whole[-10:], len(whole))
    path = tmp_path / "bad.arrow"
    for at in range(0, length, 7):
        path.write_bytes(whole[: offset + at] + b"\xff" * 7 + whole[offset + at + 7 :])
        with contextlib.suppress(DatasetError):
            assert serve(open_file(path)).rows <= 300


def test_a_message_of_garbage_is_an_error_and_not_a_short_result(tmp_path: Path) -> None:
    path = write_file(tmp_path / "x.arrow", numbers())
    data = path.read_bytes()
    offset, length = find_footer(data[-10:], len(data))
    block = read_footer(data[offset : offset + length], offset).record_batches[1]
    path.write_bytes(data[: block.offset + 8] + b"\x7f" * 64 + data[block.offset + 72 :])
    dataset = open_file(path)
    with pytest.raises(DatasetError, match=rf"x\.arrow is corrupt at byte {block.offset}: "):
        serve(dataset)
    with pytest.raises(DatasetError, match=r"cannot read .*x\.arrow"):
        serve(dataset, columns=("n", "d"))
    with pytest.raises(DatasetError, match=rf"corrupt at byte {block.offset}"):
        serve(dataset, columns=("n",))
    with pytest.raises(DatasetError, match=rf"corrupt at byte {block.offset}"):
        _ = dataset.rows


def test_a_footer_that_belies_a_message_is_noticed(tmp_path: Path) -> None:
    path = write_file(tmp_path / "x.arrow", large())
    data = path.read_bytes()
    offset, length = find_footer(data[-10:], len(data))
    blocks = [list(b) for b in read_footer(data[offset : offset + length], offset).record_batches]
    blocks[2][2] -= 64
    lie = footer([(b[0], b[1], b[2]) for b in blocks], columns=["n"])
    path.write_bytes(data[:offset] + lie + len(lie).to_bytes(4, "little") + b"ARROW1")
    dataset = ArrowFileDataset(path)
    source = dataset.open(Request("name"), PLAIN)
    with pytest.raises(DatasetError, match=f"corrupt at byte {blocks[2][0]}|as an Arrow IPC file"):
        list(source)
    source.close()


def test_a_vanished_file(tmp_path: Path) -> None:
    path = write_file(tmp_path / "x.arrow", numbers())
    dataset = open_file(path)
    path.unlink()
    with pytest.raises(DatasetError, match=r"cannot read .*x\.arrow: No such file"):
        serve(dataset)
    with pytest.raises(DatasetError, match="No such file"):
        _ = dataset.rows


def test_a_replaced_file_is_read_anew_by_the_next_reader(tmp_path: Path) -> None:
    path = write_file(tmp_path / "x.arrow", large())
    dataset = open_file(path)
    running = iter(dataset.open(Request("name"), PLAIN))
    first = next(running)
    other = pa.record_batch({"other": [1, 2, 3]})
    os.replace(write_file(tmp_path / "y.arrow", [other]), path)
    assert serve(dataset).batches == [other]
    assert dataset.schema == other.schema
    assert (dataset.rows, dataset.nbytes) == (3, path.stat().st_size)
    # A reader that began before goes on with the file that it opened.
    rest = [message for group in running for message in group]
    assert first[0].rows == 0
    assert sum(message.rows for message in rest) == 90_000
    running.close()  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    "asked", [{}, {"columns": ("n",), "compression": "lz4"}, {"batch_rows": 9}]
)
@pytest.mark.parametrize("how", ["cut", "grow", "touch", "rewrite"])
def test_a_file_that_changes_while_it_is_read(
    tmp_path: Path, how: str, asked: dict[str, Any]
) -> None:
    sent = [pa.record_batch({"n": list(range(30_000)), "m": ["text"] * 30_000}) for _ in range(16)]
    path = write_file(tmp_path / "x.arrow", sent)
    dataset = open_file(path)
    source = dataset.open(Request("name", **asked), PLAIN)
    groups = iter(source)
    for _ in range(3):
        next(groups)
    status = path.stat()
    if how == "cut":
        os.truncate(path, status.st_size // 2)
    elif how == "grow":
        with path.open("ab") as file:
            file.write(bytes(8))
    elif how == "rewrite":
        shutil.copyfile(write_file(tmp_path / "y.arrow", sent[::-1]), path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    with pytest.raises(DatasetError, match=r"x\.arrow"):
        list(groups)
    source.close()


def test_a_file_that_is_cut_after_its_last_message_was_read(tmp_path: Path) -> None:
    path = write_file(tmp_path / "x.arrow", numbers())
    source = open_file(path).open(Request("name"), PLAIN)
    groups = iter(source)
    assert sum(message.rows for _ in range(2) for message in next(groups)) == 300
    os.truncate(path, 100)
    with pytest.raises(DatasetError, match="changed while it was read"):
        next(groups)
    source.close()


def test_a_source_that_is_closed_early_closes_its_file(tmp_path: Path) -> None:
    dataset = open_file(write_file(tmp_path / "x.arrow", large()))
    before = len(os.listdir("/proc/self/fd"))
    for asked in asking({}, {"limit": 10}, {"compression": "zstd"}):
        for groups in range(3):
            source = dataset.open(Request("name", **asked), PLAIN)
            found = iter(source)
            for _ in range(groups):
                next(found)
            source.close()
            source.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_index_is_kept_until_the_dataset_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = open_file(write_file(tmp_path / "x.arrow", numbers()))
    looks: list[object] = []
    look_into = ArrowFileDataset.look_into

    def counted(self: ArrowFileDataset, file: Any) -> Any:
        looks.append(file)
        return look_into(self, file)

    monkeypatch.setattr(ArrowFileDataset, "look_into", counted)
    assert serve(dataset).batches == serve(dataset).batches == numbers()
    assert looks == []
    dataset.close()
    assert serve(dataset).batches == numbers()
    assert len(looks) == 1
