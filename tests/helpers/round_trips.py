"""Data out of splitarrow by every way, and back through it and through readers of others."""

from __future__ import annotations

import base64
import decimal
import io
import json
import os
import re
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, redirect_stderr
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, cast

import pyarrow as pa
import pyarrow.compute as pc

import splitarrow
from splitarrow.cli.app import run
from splitarrow.cli.local_input import open_local, open_selection
from splitarrow.cli.output_formats import open_sink
from splitarrow.errors import SplitArrowError, UsageError
from splitarrow.formats.arrow.data_types import is_text, list_child_types
from splitarrow.formats.arrow.supported_types import convert_to_supported

from .arrow_data import make_arrays_of_all_types, make_extreme_arrays, make_short_intervals
from .files import write_file
from .http_downloads import download

# --- the data ---------------------------------------------------------------------------------


@cache
def make_type_examples() -> dict[str, pa.Table]:
    """Return a table for each array of `arrow_data`. Its name begins with that of the type."""
    arrays = make_arrays_of_all_types() | make_extreme_arrays()
    tables = {name: pa.table([array], names=["c"]) for name, array in arrays.items()}
    short = make_short_intervals()
    for column, name in {
        "months": "interval months",
        "days": "interval days",
        "list": "list of interval months",
        "dictionary": "dictionary of interval months",
    }.items():
        whole = pa.Table.from_batches([short.select([column])])
        tables |= {name: whole.slice(0, 2), f"{name} with extremes": whole}
    return tables


@cache
def make_examples() -> dict[str, pa.Table]:
    """Return the tables of `make_type_examples`, and some of odd shapes and names."""
    tables = {**make_type_examples()}
    numbers, texts = pa.array([1, None, 3]), pa.array(["", None, "x"])
    two = pa.table([numbers, texts], names=["n", "s"])
    tables |= {
        "two columns": two,
        "two columns, two batches": pa.concat_tables([two, two.slice(1)]),
        "0 rows": two.slice(0, 0),
        "0 columns": two.select([]),
        "0 rows and 0 columns": two.slice(0, 0).select([]),
    }
    names = ["", " ", "a b", "a.b", 'a"b', "a,b", "a\nb", "a\r\nb", "a\0b", "é😀", "\ufeffa", "1"]
    for each in names:
        tables[f"name {each!r}"] = pa.table([numbers, texts], names=[each, "s"])
        struct = pa.StructArray.from_arrays([numbers], [each])
        tables[f"field {each!r}"] = pa.table([struct], names=["c"])
    twice = pa.StructArray.from_arrays([numbers, texts], ["a", "a"])
    return tables | {
        "names a, a": pa.table([numbers, texts], names=["a", "a"]),
        "names a, A": pa.table([numbers, texts], names=["a", "A"]),
        "fields a, a": pa.table([twice], names=["c"]),
        "list with fields a, a": pa.table(
            [pa.ListArray.from_arrays(pa.array([0, 1, 3], pa.int32()), twice)], names=["c"]
        ),
    }


# --- values -----------------------------------------------------------------------------------

_UNITS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_DAY = 86_400 * 10**9


def list_values(array: Any) -> list[Any]:
    """Return the values of an array as such of Python that compare exactly.

    Times are integers in nanoseconds, floats their text, and structs and maps tuples of pairs.
    Encodings do not count: equal values in a dictionary, in runs and in a view are equal.
    """
    data_type, types = array.type, pa.types
    if isinstance(array, pa.ChunkedArray):
        return [value for chunk in array.chunks for value in list_values(chunk)]
    if isinstance(data_type, pa.Bool8Type):
        return array.storage.cast(pa.bool_()).to_pylist()
    if isinstance(array, pa.ExtensionArray):
        return list_values(array.storage)
    if types.is_dictionary(data_type):
        values = list_values(array.dictionary)
        return [None if at is None else values[at] for at in array.indices.to_pylist()]
    if types.is_run_end_encoded(data_type):
        values, ends = list_values(array.values), array.run_ends.to_pylist()
        wide = [value for at, value in enumerate(values) for _ in range(_measure_run(ends, at))]
        return wide[array.offset : array.offset + len(array)]
    if types.is_union(data_type):
        children = [list_values(array.field(at)) for at in range(data_type.num_fields)]
        rows = range(len(array)) if data_type.mode == "sparse" else array.offsets.to_pylist()
        codes = array.type_codes.to_pylist()
        return [children[code][row] for code, row in zip(codes, rows, strict=True)]
    if types.is_nested(data_type):
        return _list_nested(array)
    return _list_flat(array)


def _measure_run(ends: list[int], at: int) -> int:
    return ends[at] - (ends[at - 1] if at else 0)


def _list_nested(array: Any) -> list[Any]:
    data_type, valid = array.type, array.is_valid().to_pylist()
    if pa.types.is_struct(data_type):
        names = [data_type.field(at).name for at in range(data_type.num_fields)]
        columns = [list_values(child) for child in array.flatten()]
        rows: Any = zip(*columns, strict=True) if columns else ((),) * len(array)
        return [
            tuple(zip(names, row, strict=True)) if is_there else None
            for row, is_there in zip(rows, valid, strict=True)
        ]
    if pa.types.is_map(data_type):
        keys, items = list_values(array.keys), list_values(array.items)
        values: list[Any] = list(zip(keys, items, strict=True))
    else:
        values = list_values(array.values)
    size = getattr(data_type, "list_size", None)
    if size is not None:
        begins = [(array.offset + row) * size for row in range(len(array))]
        ends = [begin + size for begin in begins]
    elif hasattr(array, "sizes"):
        begins = array.offsets.to_pylist()
        ends = [b + n for b, n in zip(begins, array.sizes.to_pylist(), strict=True)]
    else:
        offsets = array.offsets.to_pylist()
        begins, ends = offsets[:-1], offsets[1:]
    rows = zip(begins, ends, valid, strict=True)
    return [values[begin:end] if is_there else None for begin, end, is_there in rows]


def _list_flat(array: Any) -> list[Any]:
    data_type, types = array.type, pa.types
    if types.is_date32(data_type):
        return _scale(array.view(pa.int32()), _DAY)
    if types.is_date64(data_type):
        return _scale(array.view(pa.int64()), 10**6)
    if types.is_temporal(data_type) and not types.is_interval(data_type):
        wide = pa.int32() if data_type.bit_width == 32 else pa.int64()
        return _scale(array.view(wide), _UNITS[data_type.unit])
    if types.is_floating(data_type):
        return [None if value is None else repr(float(value)) for value in array.to_pylist()]
    return array.to_pylist()


def _scale(numbers: Any, factor: int) -> list[Any]:
    return [None if n is None else n * factor for n in numbers.to_pylist()]


def list_columns(table: pa.Table) -> list[tuple[str, list[Any]]]:
    """Return the names of the columns, and their values."""
    columns = convert_to_supported(table).columns
    return list(zip(table.schema.names, map(list_values, columns), strict=True))


def compare(table: pa.Table, found: pa.Table, *, is_text: bool = False) -> str:
    """Return ``yes``, ``other type``, ``as text`` or ``wrong``."""
    expected, values = list_columns(table), list_columns(found)
    if found.num_rows != table.num_rows or found.schema.names != table.schema.names:
        return "wrong"
    if values == expected:
        return "yes" if found.schema.types == table.schema.types else "other type"
    if not is_text:
        return "wrong"
    pairs = list(zip(convert_to_supported(table).columns, found.columns, strict=True))
    if all(_is_close_to(*each) for each in pairs):
        return "other type"
    return "as text" if all(_is_like(*each) for each in pairs) else "wrong"


def _is_like(column: Any, found: Any) -> bool:
    return _is_text_of(column, found) or _is_close_to(column, found)


def _is_close_to(column: Any, found: Any) -> bool:
    """Return whether a column has the values of another one, in a type that text is read as."""
    data_type, values, expected = column.type, list_values(found), list_values(column)
    if isinstance(data_type, pa.DictionaryType):
        data_type = data_type.value_type
    if pa.types.is_decimal(data_type) and pa.types.is_floating(found.type):
        values = [None if each is None else decimal.Decimal(each) for each in values]
    elif pa.types.is_floating(data_type) and pa.types.is_floating(found.type):
        values = list_values(found.cast(data_type))
    elif pa.types.is_map(data_type):
        expected = [_name_pairs(each) for each in expected]
    return values == _list_parts(expected)


def _list_parts(values: Any) -> Any:
    """Return values with lists in place of intervals."""
    if isinstance(values, pa.MonthDayNano):
        return [*values]
    return [_list_parts(each) for each in values] if isinstance(values, list) else values


def _name_pairs(entries: Any) -> Any:
    return entries and [(("key", key), ("value", value)) for key, value in entries]


def _is_text_of(column: Any, texts: Any) -> bool:
    """Return whether a column of text, or of lists or structs of it, has the values of another."""
    expected = list_values(column)
    types = pa.types
    if types.is_list(column.type) and types.is_list(texts.type):
        lengths = pc.list_value_length
        column, texts = column.combine_chunks(), texts.combine_chunks()
        return lengths(column).equals(lengths(texts)) and _is_like(
            column.flatten(), texts.flatten()
        )
    if types.is_struct(column.type) and types.is_struct(texts.type):
        return pc.is_valid(column).equals(pc.is_valid(texts)) and all(
            map(_is_like, column.flatten(), texts.flatten())
        )
    if not pa.types.is_string(texts.type):
        return False
    if not _holds_text(column.type):  # a null in the only column may be an empty text
        texts = pc.if_else(pc.equal(texts, pa.scalar("")), pa.scalar(None, pa.string()), texts)
    found = texts.to_pylist()
    if [each is None for each in found] != [each is None for each in expected]:
        return False
    data_type = column.type
    if isinstance(data_type, pa.DictionaryType):
        data_type = data_type.value_type
    if _is_binary(data_type):
        return [None if each is None else base64.b64decode(each) for each in found] == expected
    try:
        return list_values(texts.cast(data_type)) == expected
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return len({*found}) >= len({*map(repr, expected)})


def _is_binary(data_type: Any) -> bool:
    is_string = data_type in (pa.string(), pa.large_string(), pa.string_view())
    return pa.types.is_fixed_size_binary(data_type) or (is_text(data_type) and not is_string)


def _holds_text(data_type: Any) -> bool:
    return (
        is_text(data_type)
        or any(map(_holds_text, list_child_types(data_type)))
        or (pa.types.is_fixed_size_binary(data_type))
    )


# --- the ways out -----------------------------------------------------------------------------


class RefusedError(Exception):
    """splitarrow has refused to write data, with one line."""


class Site(NamedTuple):
    """A folder with a file for each table, and a server of them all that accepts uploads."""

    folder: Path
    tables: dict[str, pa.Table]
    files: dict[str, Path]
    names: dict[str, str]
    server: Any
    client: Any

    def make_path(self, suffix: str) -> Path:
        """Return the path of a file to write."""
        path = self.folder / f"out{suffix}"
        path.unlink(missing_ok=True)
        return path


@contextmanager
def open_site(folder: Path, tables: dict[str, pa.Table]) -> Generator[Site]:
    """Serve tables."""
    names = {name: f"t{at}" for at, name in enumerate(tables)}
    files = {
        name: write_file(folder / f"{names[name]}.arrow", table.to_batches(), table.schema)
        for name, table in tables.items()
    }
    datasets = {names[name]: str(file) for name, file in files.items()}
    (folder / "uploads").mkdir()
    with (
        splitarrow.serve(
            datasets,
            control="grpc://127.0.0.1:0",
            http="http://127.0.0.1:0",
            writable=str(folder / "uploads"),
        ) as server,
        splitarrow.connect(str(server.control_uri)) as client,
    ):
        yield Site(folder, tables, files, names, server, client)


@contextmanager
def _redirect(descriptor: int, path: Path) -> Generator[None]:
    """Send what this process writes to a descriptor to a file."""
    (sys.stdout if descriptor == 1 else sys.stderr).flush()
    kept = os.dup(descriptor)
    with path.open("wb") as file:
        os.dup2(file.fileno(), descriptor)
    try:
        yield
    finally:
        (sys.stdout if descriptor == 1 else sys.stderr).flush()
        os.dup2(kept, descriptor)
        os.close(kept)


def _run(site: Site, arguments: list[Any], output: Path | None = None) -> None:
    errors = io.StringIO()
    with redirect_stderr(errors), _redirect(1, output or site.folder / "output"):
        status = run([str(each) for each in arguments])
    text = errors.getvalue()
    if status == 0:
        return
    if text.count("\n") != 1 or "internal error" in text:
        raise AssertionError(text)
    raise RefusedError(text)


Write = Callable[[Site, str], Path]
"""Writes a table of a site, by its name, and returns the file. Raises `RefusedError`."""


def _convert(suffix: str, *options: str) -> Write:
    def write(site: Site, name: str) -> Path:
        path = site.make_path(suffix)
        _run(site, ["convert", site.files[name], path, "--quiet", *options])
        return path

    return write


def _convert_twice(*options: str) -> Write:
    """Write another form of messages, some types of which pyarrow cannot read, and convert it."""

    def write(site: Site, name: str) -> Path:
        path, between = site.make_path(".arrows"), site.folder / "between.arrows"
        _run(site, ["convert", site.files[name], between, "--quiet", *options])
        back = ["--metadata-version", "v5", "--endianness", "little"]
        _run(site, ["convert", between, path, "--quiet", *back])
        return path

    return write


def _fetch(suffix: str) -> Write:
    def write(site: Site, name: str) -> Path:
        path = site.make_path(suffix)
        _run(site, ["fetch", site.server.control_uri, site.names[name], "-o", path, "--quiet"])
        return path

    return write


def _cat(format: str) -> Write:
    def write(site: Site, name: str) -> Path:
        path = site.make_path(f".{format}")
        _run(site, ["cat", site.files[name], "--format", format], path)
        return path

    return write


def _download(format: str, suffix: str) -> Write:
    def write(site: Site, name: str) -> Path:
        path = site.make_path(suffix)
        place = f"/v1/datasets/{site.names[name]}/data?format={format}"
        response = download(site.server.http_uri, place)
        if response.status == 400:
            raise RefusedError(response.body.decode())
        assert response.status == 200, response
        path.write_bytes(response.body)
        return path

    return write


def _sink(suffix: str) -> Write:
    def write(site: Site, name: str) -> Path:
        path = site.make_path(suffix)
        write_sink(path, site.tables[name])
        return path

    return write


def write_sink(path: Path, table: pa.Table) -> None:
    """Write a table with the sink that a suffix selects. Raises `RefusedError`."""
    try:
        sink = open_sink(path.suffix, path, table.schema)
        try:
            for batch in table.to_batches():
                sink.write(batch)
            sink.close()
        except BaseException:
            sink.abort()
            raise
    except UsageError as error:
        raise RefusedError(error.message) from None


def _put(site: Site, name: str) -> Path:
    target = f"put-{site.names[name]}"
    site.client.put(target, site.tables[name])
    return _keep(site, target)


def _publish(site: Site, name: str) -> Path:
    target = f"published-{site.names[name]}"
    site.client.put_shard(target, site.files[name], job="job", ordinal=0)
    site.client.put_shard(target, site.tables[name].slice(0, 0), job="job", ordinal=1)
    site.client.publish(target, job="job", ordinals=(0, 1))
    return _keep(site, target)


def _keep(site: Site, dataset: str) -> Path:
    path = site.make_path(".arrows")
    with (
        site.client.read(dataset) as stream,
        pa.ipc.new_stream(str(path), stream.schema) as writer,
    ):
        for batch in stream:
            writer.write_batch(batch)
    return path


FILES = (".arrow", ".arrows", ".parquet", ".vortex", ".vortexs", ".csv", ".jsonl")
SINKS: dict[str, Write] = {f"sink {suffix}": _sink(suffix) for suffix in FILES}
WAYS: dict[str, Write] = {
    **{f"convert {suffix}": _convert(suffix) for suffix in FILES},
    "convert .arrow, zstd": _convert(".arrow", "--compression", "zstd"),
    "convert .arrows, legacy": _convert_twice("--framing", "legacy"),
    "convert .arrows, big-endian": _convert_twice("--endianness", "big"),
    **{f"fetch {suffix}": _fetch(suffix) for suffix in FILES},
    "cat csv": _cat("csv"),
    "cat jsonl": _cat("jsonl"),
    "http arrow-stream": _download("arrow-stream", ".arrows"),
    "http arrow-file": _download("arrow-file", ".arrow"),
    "http parquet": _download("parquet", ".parquet"),
    "http csv": _download("csv", ".csv"),
    "http ndjson": _download("ndjson", ".jsonl"),
    "http vortex": _download("vortex", ".vortexs"),
    "put": _put,
    "publish": _publish,
}
"""Every way out, by its name."""

# --- the ways back ----------------------------------------------------------------------------


def read_ours(path: Path, schema: pa.Schema | None = None) -> pa.Table:
    """Read a file as the commands do. `schema` is that of ``--schema``."""
    with open_local(str(path), schema) as dataset, open_selection(dataset, "t") as stream:
        return pa.Table.from_batches(list(stream), stream.schema)


class Reader(NamedTuple):
    """A reader that shares no code with splitarrow."""

    read: Callable[[Path, pa.Table], pa.Table]
    """Reads a file. The table has the names of its columns."""
    lacks: re.Pattern[str]
    """The examples that it refuses or changes."""


def check_others(path: Path, name: str, table: pa.Table) -> str:
    """Return what another reader gets from a file: ``yes``, ``lacks``, or what is wrong."""
    reader = READERS.get(path.suffix)
    if reader is None or reader.lacks.search(name):
        return "lacks"
    try:
        if path.suffix == ".jsonl":
            return _compare_json(reader.read(path, table), read_ours(path))
        outcome = compare(table, reader.read(path, table), is_text=path.suffix == ".csv")
    except BaseException as error:  # polars panics
        if isinstance(error, KeyboardInterrupt):
            raise
        return f"{type(error).__name__}: {error}"
    return "yes" if outcome in ("other type", "as text") else outcome


@cache
def _connect() -> Any:
    import duckdb

    return duckdb.connect()


def _query(sql: str) -> Any:
    return _connect().sql(sql).to_arrow_table()


def _read_duckdb(path: Path, _: pa.Table) -> Any:
    return _query(f"FROM read_parquet('{path}')")


def _read_duckdb_csv(path: Path, _: pa.Table) -> Any:
    options = (
        "header=true, all_varchar=true, delim=',', quote='\"', escape='\"', null_padding=false"
    )
    return _query(f"FROM read_csv('{path}', {options}, allow_quoted_nulls=false)")


def _read_duckdb_json(path: Path, table: pa.Table) -> Any:
    names = [name.replace("'", "''") for name in table.schema.names]
    columns = ", ".join(f"'{name}': 'JSON'" for name in names)
    return _query(f"FROM read_json('{path}', format='newline_delimited', columns={{{columns}}})")


def _compare_json(texts: Any, ours: pa.Table) -> str:
    """Return whether the JSON of each value is the value that splitarrow reads."""
    if texts.schema.names != ours.schema.names or texts.num_rows != ours.num_rows:
        return "wrong"
    for column, (_, values) in zip(texts.columns, list_columns(ours), strict=True):
        parsed = [each and json.loads(each) for each in column.to_pylist()]
        if not all(map(_agrees, parsed, values)):
            return "wrong"
    return "yes"


def _agrees(parsed: Any, value: Any) -> bool:
    if isinstance(parsed, dict) and isinstance(value, tuple):
        fields = cast("dict[str, Any]", parsed)
        return all(_agrees(fields.get(name), each) for name, each in cast("Any", value))
    if isinstance(parsed, list) and isinstance(value, list):
        items, values = cast("list[Any]", parsed), cast("list[Any]", value)
        return len(items) == len(values) and all(map(_agrees, items, values))
    if isinstance(parsed, str) and not isinstance(value, str):
        return value is not None  # a time
    if isinstance(value, str) and parsed != value:
        return repr(float(value)) == repr(float(cast("Any", parsed)))
    return parsed == value


def _read_polars(path: Path, _: pa.Table) -> Any:
    import polars

    read: Any = polars.read_ipc_stream if path.suffix == ".arrows" else polars.read_ipc
    with _redirect(2, path.with_suffix(".panics")):
        return read(path).to_arrow()


def _read_vortex(path: Path, _: pa.Table) -> Any:
    import vortex

    return vortex.open(str(path)).to_arrow().read_all()


_POLARS = Reader(
    _read_polars,
    re.compile(
        r"decimal256|interval|fixed_size_binary of 0|list_view|union|run_end|[+]05:30|x00|s a, a$"
        r"|duration\[s\] with|timestamp\[s, .* of its width"
    ),
)
READERS: dict[str, Reader] = {
    ".arrow": _POLARS,
    ".arrows": _POLARS,
    ".parquet": Reader(
        _read_duckdb,
        re.compile(
            r"decimal256|duration\[(s|ms|us)\]|uuid|timestamp\[ms, .* of its width|x00"
            r"|(name|field) ''|s a, [aA]$|0 columns"
        ),
    ),
    ".csv": Reader(_read_duckdb_csv, re.compile(r"name (''|' '|'a.r.nb')|x00|s a, [aA]$")),
    ".jsonl": Reader(_read_duckdb_json, re.compile(r"name ''|x00|s a, [aA]$")),
    ".vortex": Reader(_read_vortex, re.compile("0 columns")),
}
"""Readers by the suffix of files. vortex-data has no reader of streams."""


def judge(name: str, table: pa.Table, path: Path, *, others: bool = True) -> str:
    """Return the outcome of a written file: that of `compare`, or what is wrong.

    Text is also read with the schema of the table. Then it has to have its types and values.
    """
    is_text = path.suffix in (".csv", ".jsonl")
    try:
        if is_text:
            typed = compare(convert_to_supported(table), read_ours(path, table.schema))
            if typed != "yes":
                return f"{typed} with the schema"
        if is_text and not path.stat().st_size:
            return "yes"  # only the schema names the columns
        outcome = compare(table, read_ours(path), is_text=is_text)
    except SplitArrowError as error:
        return f"wrong: {error}"
    if outcome != "wrong" and others:
        found = check_others(path, name, table)
        return outcome if found in ("yes", "lacks") else f"wrong for others: {found}"
    return outcome
