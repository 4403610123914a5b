"""Arrow IPC files: messages pass through or are re-encoded, and every bad file is one error."""

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

from helpers.arrow_data import make_arrays_of_all_types
from helpers.catalog import (
    DEFAULTS,
    batch_without_columns,
    number_batches,
    read_dataset,
    requests,
    to_table,
)
from helpers.crafting import BIG, LITTLE, plain_batch, schema_of_ints
from helpers.files import changing, write_file
from helpers.footers import footer
from splitarrow.errors import DatasetError
from splitarrow.formats.arrow.file import find_footer, read_footer
from splitarrow.formats.arrow.message import encapsulate
from splitarrow.protocol.request import Request
from splitarrow.server.catalog.dataset import GROUP_BYTES, Encoding
from splitarrow.server.catalog.files.arrow import ArrowFileDataset
from splitarrow.server.catalog.files.file_types import open_file
from splitarrow.server.catalog.files.origins import LocalOrigin
from splitarrow.transport.memory.files import SourceFile

ARRAYS = make_arrays_of_all_types()
CODECS = [None, "lz4", "zstd"]


def large(batches: int = 3, rows: int = 40_000) -> list[pa.RecordBatch]:
    return [
        pa.record_batch({"n": pa.array(range(i, i + rows), pa.int64())}) for i in range(batches)
    ]


def read_messages(path: Path) -> list[tuple[bytes, bytes]]:
    """Return the metadata and body of each message after the schema in a file."""
    data = path.read_bytes()
    offset, length = find_footer(data[-10:], len(data))
    blocks = read_footer(data[offset : offset + length], offset)
    messages: list[tuple[bytes, bytes]] = []
    for at, metadata, body in (*blocks.dictionaries, *blocks.record_batches):
        start = at + (8 if data[at : at + 4] == b"\xff" * 4 else 4)
        end = at + metadata
        messages.append((data[start:end], data[end : end + body]))
    return messages


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("make", [number_batches, large])
def test_messages_pass_through_unchanged(
    tmp_path: Path, make: Callable[[], list[pa.RecordBatch]], legacy: bool, codec: str | None
) -> None:
    sent = make()
    path = write_file(tmp_path / "x.arrow", sent, compression=codec, use_legacy_format=legacy)
    dataset = open_file(path)
    result = read_dataset(dataset)
    assert not result.blocking
    actual = [(bytes(m.metadata), b"".join(m.body or ())) for m in result.messages[1:]]
    assert actual == read_messages(path)
    assert result.batches == sent
    assert result.rows == dataset.rows == sum(batch.num_rows for batch in sent)
    assert (dataset.kind, dataset.nbytes) == ("arrow file", path.stat().st_size)
    assert dataset.schema.equals(sent[0].schema, check_metadata=True)


def test_large_bodies_are_regions_and_small_ones_share_groups(tmp_path: Path) -> None:
    result = read_dataset(open_file(write_file(tmp_path / "large.arrow", large())))
    assert result.regions == 3
    result = read_dataset(open_file(write_file(tmp_path / "small.arrow", number_batches(300))))
    assert result.regions == 0
    assert len(result.groups[0]) == 3  # the schema, a dictionary and the first batch
    total = sum(m.body_length + len(m.metadata) + 8 for m in result.messages[1:])
    assert 1 < len(result.groups) <= total // GROUP_BYTES + 2
    assert result.table == to_table(number_batches(300))


def test_small_and_large_bodies_may_alternate(tmp_path: Path) -> None:
    sent = [batch for pair in zip(large(5, 10), large(5), strict=True) for batch in pair]
    result = read_dataset(open_file(write_file(tmp_path / "x.arrow", sent)))
    assert result.batches == sent
    assert result.regions == 5


def test_the_footer_determines_the_order_of_batches(tmp_path: Path) -> None:
    path = write_file(tmp_path / "x.arrow", number_batches(6))
    data = bytearray(path.read_bytes())
    offset, length = find_footer(bytes(data[-10:]), len(data))
    blocks = read_footer(bytes(data[offset : offset + length]), offset).record_batches
    packed = blocks.packed
    at = data.index(packed)
    reversed_blocks = [packed[start : start + 24] for start in range(0, len(packed), 24)][::-1]
    data[at : at + len(packed)] = b"".join(reversed_blocks)
    path.write_bytes(data)
    assert read_dataset(open_file(path)).batches == number_batches(6)[::-1]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("name", ARRAYS)
def test_every_type_can_be_read_with_every_request(
    tmp_path: Path, name: str, codec: str | None
) -> None:
    array = ARRAYS[name]
    sent = [pa.record_batch({"x": array[:0]}), pa.record_batch({"y": array, "x": array})]
    schema = sent[1].schema
    batch = sent[1]
    path = write_file(
        tmp_path / "x.arrow", [batch, batch.slice(1, 3), batch.slice(0, 0)], compression=codec
    )
    dataset = open_file(path)
    with pa.ipc.open_file(str(path)) as reader:
        table = reader.read_all()
    for fields in requests(
        {},
        {"compression": "zstd"},
        {"compression": "none"},
        {"batch_rows": 2},
        {"limit": 6},
        {"columns": ("x", "y"), "limit": 7, "batch_rows": 3, "compression": "lz4"},
        {"columns": ("x",)},
    ):
        result = read_dataset(dataset, **fields)
        columns = list(fields.get("columns", schema.names))
        expected = table.select(columns).slice(0, fields.get("limit"))
        assert result.schema.equals(expected.schema, check_metadata=True)
        assert result.table.equals(expected)
        assert result.rows == expected.num_rows
        batch_rows = fields.get("batch_rows", 1 << 60)
        assert all(batch.num_rows <= batch_rows for batch in result.batches)


def test_a_file_may_have_no_batch_or_no_column(tmp_path: Path) -> None:
    schema = pa.schema([("a", pa.int8())], metadata={"k": "v"})
    dataset = open_file(write_file(tmp_path / "rows.arrow", [], schema))
    for fields in requests({}, {"columns": ("a",)}, {"compression": "lz4"}, {"limit": 3}):
        result = read_dataset(dataset, **fields)
        assert (len(result.messages), result.rows) == (1, 0)
        assert result.schema.equals(schema, check_metadata=True)
    batch = batch_without_columns(7)
    dataset = open_file(write_file(tmp_path / "columns.arrow", [batch]))
    assert dataset.rows == 7
    assert read_dataset(dataset).rows == 7
    assert read_dataset(dataset, compression="lz4").rows == 7
    assert read_dataset(dataset, limit=3).rows == 3


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("requested", [None, "none", "lz4", "zstd"])
def test_only_another_compression_or_batch_size_causes_reencoding(
    tmp_path: Path, codec: str | None, requested: str | None
) -> None:
    sent = [pa.record_batch({"n": [7] * 5000}) for _ in range(2)]
    dataset = open_file(write_file(tmp_path / "x.arrow", sent, compression=codec))
    same = requested in (None, codec or "none")
    for result in (
        read_dataset(dataset, compression=requested),
        read_dataset(dataset, Encoding(compression=requested)),
        read_dataset(
            dataset,
            Encoding(compression="lz4", batch_rows=9),
            compression=requested or codec or "none",
            batch_rows=5000,
        ),
    ):
        assert result.blocking != same
        assert result.batches == sent
        smaller = (requested or codec) in ("lz4", "zstd")
        assert all((m.body_length < 20_000) == smaller for m in result.messages[1:])


def test_limits_that_cut_no_batch_keep_the_passthrough(tmp_path: Path) -> None:
    dataset = open_file(write_file(tmp_path / "x.arrow", number_batches()))
    for fields in requests({"limit": 300}, {"batch_rows": 100}, {"columns": ("n", "t", "d")}):
        assert not read_dataset(dataset, **fields).blocking
    for fields in requests({"limit": 299}, {"batch_rows": 99}, {"columns": ("n", "d", "t")}):
        assert read_dataset(dataset, **fields).blocking


def test_columns_have_the_requested_order(tmp_path: Path) -> None:
    dataset = open_file(write_file(tmp_path / "x.arrow", number_batches()))
    result = read_dataset(dataset, columns=("d", "n"))
    assert result.table == to_table(number_batches()).select(["d", "n"])
    assert result.blocking


def test_custom_metadata_of_messages_is_kept(tmp_path: Path) -> None:
    path, batch = tmp_path / "x.arrow", number_batches(1)[0]
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch, custom_metadata={b"k": b"v"})
    for fields in requests({}, {"compression": "lz4"}, {"columns": ("n",)}):
        with pa.ipc.open_stream(read_dataset(open_file(path), **fields).stream) as reader:
            actual = reader.read_next_batch_with_custom_metadata()
        assert actual.custom_metadata == {b"k": b"v"}


def test_files_of_other_arrow_versions_are_served(arrow_test_data: Path) -> None:
    paths = sorted((arrow_test_data / "arrow-ipc-stream" / "integration").glob("*/*.arrow_file"))
    assert len(paths) > 30
    for path in paths:
        with pa.ipc.open_file(str(path)) as reader:
            expected = reader.read_all()
        dataset = open_file(path)
        result = read_dataset(dataset)
        assert not result.blocking, path
        reencoded = read_dataset(dataset, compression="lz4" if "zstd" in path.name else "zstd")
        names = tuple(dict.fromkeys(expected.schema.names[::-1]))
        if len(names) == len(expected.schema):
            reordered = read_dataset(dataset, columns=names, limit=5)
            first_rows = expected.select(list(names)).slice(0, 5)
            assert reordered.table.equals(first_rows) or reordered.rows == 5
        for actual in (result, reencoded, read_dataset(dataset, batch_rows=3)):
            assert actual.schema.equals(expected.schema, check_metadata=True), path
            assert (
                actual.table.equals(expected) or actual.table.to_pydict() == expected.to_pydict()
            ), path
        assert result.rows == dataset.rows == expected.num_rows, path


def test_a_real_file_equals_what_pyarrow_reads(vega_test_data: Path) -> None:
    path = vega_test_data / "flights-200k.arrow"
    with pa.ipc.open_file(str(path)) as reader:
        expected = reader.read_all()
    dataset = open_file(path)
    assert read_dataset(dataset).table.equals(expected)
    assert read_dataset(dataset, columns=("delay",), limit=1000).table.equals(
        expected.select(["delay"]).slice(0, 1000)
    )


def big_endian_file(path: Path, declared: int = BIG, in_footer: int = BIG) -> Path:
    """Write a file with one int32 column, whose data has the byte order in the footer."""
    order = ">" if in_footer == BIG else "<"
    body = struct.pack(f"{order}16i", *range(16))
    schema = encapsulate(schema_of_ints(["a"], endianness=declared))
    batch = encapsulate(plain_batch(16, [(0, 0), (0, 64)], 64))
    front = b"ARROW1\0\0" + schema
    data = footer([(len(front), len(batch), 64)], endianness=in_footer, columns=["a"])
    end = data + len(data).to_bytes(4, "little") + b"ARROW1"
    path.write_bytes(front + batch + body + b"\xff\xff\xff\xff\0\0\0\0" + end)
    return path


def test_big_endian_data_passes_through_and_is_reencoded_as_little_endian(tmp_path: Path) -> None:
    dataset = open_file(big_endian_file(tmp_path / "x.arrow"))
    result = read_dataset(dataset)
    assert not result.blocking
    assert result.messages[1].body == [struct.pack(">16i", *range(16))]
    assert result.table.to_pydict() == {"a": list(range(16))}
    assert read_dataset(dataset, limit=3).table.to_pydict() == {"a": [0, 1, 2]}


@pytest.mark.parametrize(("declared", "in_footer"), [(LITTLE, BIG), (BIG, LITTLE)])
def test_the_footer_determines_the_byte_order(
    tmp_path: Path, declared: int, in_footer: int
) -> None:
    dataset = open_file(big_endian_file(tmp_path / "x.arrow", declared, in_footer))
    for fields in requests({}, {"limit": 16}, {"columns": ("a",)}, {"compression": "lz4"}):
        assert read_dataset(dataset, **fields).table.to_pydict() == {"a": list(range(16))}


def test_the_footer_determines_the_ids_of_dictionaries(tmp_path: Path) -> None:
    table = pa.table({name: pa.array([name]).dictionary_encode() for name in "abc"})
    path = write_file(tmp_path / "x.arrow", table)
    data = bytearray(path.read_bytes())
    (length,) = struct.unpack_from("<i", data, 12)
    one, two = (data.index(struct.pack("<q", number), 16, 16 + length) for number in (1, 2))
    data[one : one + 8], data[two : two + 8] = data[two : two + 8], data[one : one + 8]
    path.write_bytes(data)
    with pa.ipc.open_file(str(path)) as reader:
        assert reader.read_all().to_pydict() == table.to_pydict()
    assert read_dataset(open_file(path)).table.to_pydict() == table.to_pydict()


@pytest.mark.parametrize("limit", [0, 1 << 20])
def test_a_file_without_a_schema_message_gets_that_of_its_footer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr("splitarrow.server.catalog.files.arrow._MAX_FOOTER_BYTES", limit)
    path = write_file(tmp_path / "x.arrow", number_batches())
    data = bytearray(path.read_bytes())
    data[16:80] = bytes(64)
    path.write_bytes(data)
    result = read_dataset(open_file(path))
    assert result.blocking is (not limit)  # a large footer is not sent
    assert result.batches == number_batches()


def test_a_file_that_replaces_a_dictionary_is_refused(tmp_path: Path) -> None:
    path = write_file(tmp_path / "x.arrow", number_batches())
    data = bytearray(path.read_bytes())
    offset, length = find_footer(bytes(data[-10:]), len(data))
    blocks = read_footer(bytes(data[offset : offset + length]), offset)
    twice = footer(
        list(blocks.record_batches), [blocks.dictionaries[0]] * 2, columns=["n", "t", "d"]
    )
    path.write_bytes(data[:offset] + twice + len(twice).to_bytes(4, "little") + b"ARROW1")
    with pytest.raises(DatasetError, match=r"x\.arrow .*dictionary batch 1 replaces"):
        open_file(path)
    batches = footer(
        list(blocks.record_batches), [blocks.record_batches[0]], columns=["n", "t", "d"]
    )
    path.write_bytes(data[:offset] + batches + len(batches).to_bytes(4, "little") + b"ARROW1")
    with pytest.raises(DatasetError, match="RECORD_BATCH message as dictionary batch 0"):
        open_file(path)


def test_a_truncated_file_is_refused_wherever_it_ends(tmp_path: Path) -> None:
    whole = write_file(tmp_path / "x.arrow", number_batches()).read_bytes()
    path = tmp_path / "cut.arrow"
    for size in sorted({*range(1, len(whole), 97), *range(len(whole) - 40, len(whole))}):
        path.write_bytes(whole[:size])
        with pytest.raises(DatasetError, match=r"cut\.arrow") as raised:
            ArrowFileDataset(path)
        assert "\n" not in str(raised.value)


def test_files_behind_one_another_are_refused(tmp_path: Path) -> None:
    first, second = (
        write_file(tmp_path / "x.arrow", batches).read_bytes()
        for batches in (number_batches(), number_batches()[:1])
    )
    path = tmp_path / "both.arrow"
    path.write_bytes(first + first)
    with pytest.raises(DatasetError, match=f"another Arrow IPC file begins at byte {len(first)}"):
        open_file(path)
    path.write_bytes(first + second)
    with pytest.raises(DatasetError, match="the footer does not list the record batch at byte"):
        open_file(path)


def test_a_damaged_footer_never_adds_rows(tmp_path: Path) -> None:
    whole = write_file(tmp_path / "x.arrow", number_batches()).read_bytes()
    offset, length = find_footer(whole[-10:], len(whole))
    path = tmp_path / "bad.arrow"
    for at in range(0, length, 7):
        path.write_bytes(whole[: offset + at] + b"\xff" * 7 + whole[offset + at + 7 :])
        with contextlib.suppress(DatasetError):
            assert read_dataset(open_file(path)).rows <= 300


def test_a_damaged_message_is_an_error_and_not_a_short_result(tmp_path: Path) -> None:
    path = write_file(tmp_path / "x.arrow", number_batches())
    data = path.read_bytes()
    offset, length = find_footer(data[-10:], len(data))
    block = read_footer(data[offset : offset + length], offset).record_batches[1]
    path.write_bytes(data[: block.offset + 8] + b"\x7f" * 64 + data[block.offset + 72 :])
    dataset = open_file(path)
    with pytest.raises(DatasetError, match=rf"x\.arrow is corrupt at byte {block.offset}: "):
        read_dataset(dataset)
    with pytest.raises(DatasetError, match=rf"x\.arrow is corrupt at byte {block.offset}: "):
        read_dataset(dataset, columns=("n", "d"))
    with pytest.raises(DatasetError, match=rf"corrupt at byte {block.offset}"):
        read_dataset(dataset, columns=("n",))
    with pytest.raises(DatasetError, match=rf"corrupt at byte {block.offset}"):
        _ = dataset.rows


def test_a_footer_that_contradicts_a_message_is_an_error(tmp_path: Path) -> None:
    path = write_file(tmp_path / "x.arrow", large())
    data = path.read_bytes()
    offset, length = find_footer(data[-10:], len(data))
    blocks = [list(b) for b in read_footer(data[offset : offset + length], offset).record_batches]
    blocks[2][2] -= 64
    lie = footer([(b[0], b[1], b[2]) for b in blocks], columns=["n"])
    path.write_bytes(data[:offset] + lie + len(lie).to_bytes(4, "little") + b"ARROW1")
    dataset = ArrowFileDataset(path)
    source = dataset.open(Request("name"), DEFAULTS)
    with pytest.raises(DatasetError, match=f"corrupt at byte {blocks[2][0]}|as an Arrow IPC file"):
        list(source)
    source.close()


def test_a_deleted_file_is_an_error(tmp_path: Path) -> None:
    path = write_file(tmp_path / "x.arrow", number_batches())
    dataset = open_file(path)
    path.unlink()
    with pytest.raises(DatasetError, match=r"cannot read .*x\.arrow: No such file"):
        read_dataset(dataset)
    with pytest.raises(DatasetError, match="No such file"):
        _ = dataset.rows


def test_a_replaced_file_is_for_new_readers_only(tmp_path: Path) -> None:
    path = write_file(tmp_path / "x.arrow", large())
    dataset = open_file(path)
    running = iter(dataset.open(Request("name"), DEFAULTS))
    first = next(running)
    other = pa.record_batch({"other": [1, 2, 3]})
    os.replace(write_file(tmp_path / "y.arrow", [other]), path)
    assert read_dataset(dataset).batches == [other]
    assert dataset.schema == other.schema
    assert (dataset.rows, dataset.nbytes) == (3, path.stat().st_size)
    # A reader that started before reads on from the file that it opened.
    rest = [message for group in running for message in group]
    assert [message.rows for message in first] == [0, 40_000]
    assert sum(message.rows for message in rest) == 80_000
    running.close()  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    "fields", [{}, {"columns": ("n",), "compression": "lz4"}, {"batch_rows": 9}]
)
@pytest.mark.parametrize("change", ["cut", "grow", "touch", "rewrite"])
def test_a_file_that_changes_while_it_is_read_fails_the_stream(
    tmp_path: Path, change: str, fields: dict[str, Any]
) -> None:
    sent = [pa.record_batch({"n": list(range(30_000)), "m": ["text"] * 30_000}) for _ in range(40)]
    path = write_file(tmp_path / "x.arrow", sent)
    dataset = open_file(path)
    source = dataset.open(Request("name", **fields), DEFAULTS)
    groups = iter(source)
    for _ in range(3):
        next(groups)
    status = path.stat()

    def make_change() -> None:
        if change == "cut":
            os.truncate(path, status.st_size // 2)
        elif change == "grow":
            with path.open("ab") as file:
                file.write(bytes(8))
        elif change == "rewrite":
            shutil.copyfile(write_file(tmp_path / "y.arrow", sent[::-1]), path)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))

    with changing(make_change):
        with pytest.raises(DatasetError, match=r"x\.arrow"):
            list(groups)
        source.close()


def test_a_file_truncated_after_its_last_message_fails_the_stream(tmp_path: Path) -> None:
    path = write_file(tmp_path / "x.arrow", number_batches())
    source = open_file(path).open(Request("name"), DEFAULTS)
    groups = iter(source)
    assert sum(message.rows for _ in range(2) for message in next(groups)) == 300
    with changing(lambda: os.truncate(path, 100)):
        with pytest.raises(DatasetError, match="changed while it was read"):
            next(groups)
        source.close()


def test_a_source_closed_early_closes_its_file(tmp_path: Path) -> None:
    dataset = open_file(write_file(tmp_path / "x.arrow", large()))
    before = len(os.listdir("/proc/self/fd"))
    for fields in requests({}, {"limit": 10}, {"compression": "zstd"}):
        for groups in range(3):
            source = dataset.open(Request("name", **fields), DEFAULTS)
            iterator = iter(source)
            for _ in range(groups):
                next(iterator)
            source.close()
            source.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_index_is_kept_until_the_dataset_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = open_file(write_file(tmp_path / "x.arrow", number_batches()))
    inspections: list[object] = []
    inspect = ArrowFileDataset.inspect

    def counted(self: ArrowFileDataset, file: Any) -> Any:
        inspections.append(file)
        return inspect(self, file)

    monkeypatch.setattr(ArrowFileDataset, "inspect", counted)
    assert read_dataset(dataset).batches == read_dataset(dataset).batches == number_batches()
    assert inspections == []
    dataset.close()
    assert read_dataset(dataset).batches == number_batches()
    assert len(inspections) == 1


def test_files_with_one_schema_share_it(tmp_path: Path) -> None:
    paths = [write_file(tmp_path / f"{rows}.arrow", number_batches(1, rows)) for rows in (3, 4)]
    one, other = map(open_file, paths)
    assert one.schema is other.schema
    assert [each.rows for each in (one, other)] == [3, 4]


def test_the_schema_of_an_extension_type_is_read_again(tmp_path: Path) -> None:
    field = pa.field("n", pa.int64(), metadata={"ARROW:extension:name": "unknown"})
    batch = pa.record_batch([pa.array([1])], schema=pa.schema([field]))
    paths = [write_file(tmp_path / f"{number}.arrow", [batch]) for number in range(2)]
    one, other = map(open_file, paths)
    assert one.schema == other.schema
    assert one.schema is not other.schema


class CountingOrigin(LocalOrigin):
    """A file that counts how often it is opened."""

    opened = 0

    def open(self, *, refuse_writers: bool, waits: bool = True) -> SourceFile:
        self.opened += 1
        return super().open(refuse_writers=refuse_writers, waits=waits)


@pytest.mark.parametrize(("batches", "opened"), [(0, 1), (1, 1), (2, 2)])
def test_the_rows_of_one_batch_are_known_when_the_file_is_opened(
    tmp_path: Path, batches: int, opened: int
) -> None:
    origin = CountingOrigin(tmp_path / "x.arrow")
    write_file(origin.path, number_batches(batches, 5) or pa.table({"n": pa.array([], "i8")}))
    dataset = open_file(origin)
    assert origin.opened == 1
    assert dataset.rows == 5 * batches
    assert origin.opened == opened
