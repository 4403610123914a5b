"""Variants of every type, and what other readers of Parquet make of them."""

from __future__ import annotations

import base64
import json
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from splitarrow import variant
from splitarrow.errors import InvalidDataError
from splitarrow.formats.parquet.variant.types import PRIMITIVE, Kind

from .package import ROOT

Texts = list[str | None]
Read = Callable[[Path, Sequence[str]], list[Texts]]
"""Returns the JSON texts of some columns of a file, or raises an error."""
ReadFiles = Callable[[Sequence[Path]], list[Texts]]
"""Returns the JSON texts of the column ``var`` of each file, or raises an error."""
_PAGE = ROOT / "docs" / "guide" / "variant.md"
_HEADING = "| Variant | duckdb 2.0 | Spark 4.3 |"
_ROWS = 20
_ANSWERS = "agrees", "other text", "SQL NULL", "other values", "refused", "accepted"
_VALUES = _ANSWERS[:4]


def _integers(bits: int) -> Callable[[random.Random], Any]:
    kind = getattr(np, f"int{bits}")
    return lambda rng: kind(rng.randrange(-(1 << bits - 1), 1 << bits - 1))


def _decimals(digits: int, scale: int) -> Callable[[random.Random], Any]:
    low, high = 10 ** (digits - 1), 10**digits
    return lambda rng: Decimal(f"{rng.choice((-1, 1)) * rng.randrange(low, high)}e-{scale}")


def _draw_datetime(rng: random.Random) -> Any:
    microseconds = rng.randrange(86_400 * 10**6)
    return datetime(1970, 1, 1) + timedelta(rng.randrange(-700_000, 2_900_000), 0, microseconds)


def _nanoseconds(utc: bool) -> Callable[[random.Random], Any]:
    return lambda rng: variant.Timestamp(rng.randrange(-(2**62), 2**62), "ns", utc)


KINDS: Mapping[str, tuple[Any, Callable[[random.Random], Any]]] = {
    "null": (pa.int8(), lambda _: None),
    "boolean": (pa.bool_(), lambda rng: rng.random() < 0.5),
    "int8": (pa.int8(), _integers(8)),
    "int16": (pa.int16(), _integers(16)),
    "int32": (pa.int32(), _integers(32)),
    "int64": (pa.int64(), _integers(64)),
    "float": (pa.float32(), lambda rng: np.float32(rng.gauss() * 10 ** rng.randrange(-9, 9))),
    "double": (pa.float64(), lambda rng: rng.gauss() * 10.0 ** rng.randrange(-300, 300)),
    "NaN": (pa.float64(), lambda rng: float(rng.choice(("nan", "inf", "-inf")))),
    "decimal4": (pa.decimal128(9, 2), _decimals(9, 2)),
    "decimal8": (pa.decimal128(18, 7), _decimals(18, 7)),
    "decimal16": (pa.decimal128(38, 20), _decimals(38, 20)),
    "string": (pa.string(), lambda rng: "".join(rng.choices('aé𝄞"\\\n\0 ', k=rng.randrange(80)))),
    # The first byte is never a letter, so that no text is both Base64 and that of duckdb.
    "binary": (pa.binary(), lambda rng: b"\0" + rng.randbytes(rng.randrange(80))),
    "date": (pa.date32(), lambda rng: _draw_datetime(rng).date()),
    "time_ntz": (pa.time64("us"), lambda rng: _draw_datetime(rng).time()),
    "timestamp": (pa.timestamp("us", "UTC"), lambda rng: _draw_datetime(rng).replace(tzinfo=UTC)),
    "timestamp_ntz": (pa.timestamp("us"), _draw_datetime),
    "timestamp_nanos": (pa.timestamp("ns", "UTC"), _nanoseconds(True)),
    "timestamp_ntz_nanos": (pa.timestamp("ns"), _nanoseconds(False)),
    "uuid": (pa.uuid(), lambda rng: UUID(int=rng.getrandbits(128))),
}
"""The type as which Variants are shredded, and a function that draws one."""


def list_differences(column: int) -> dict[str | int, str]:
    """Return what a reader does with a type or, by its number, a case; the others agree."""
    text = _PAGE.read_text().partition(_HEADING)[2].partition("\n\n")[0]
    listed: dict[str | int, str] = {}
    for line in text.splitlines()[2:]:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        case = re.search(r"\(case (\d+)\)", cells[0])
        found = cells[column].partition(" (")[0]
        if found != "agrees":
            names = [int(case[1])] if case else [name.strip("`") for name in cells[0].split(", ")]
            listed |= dict.fromkeys(names, found)
    return listed


def compare_drawn(folder: Path, read: Read, listed: Mapping[str | int, str]) -> dict[str, str]:
    """Return what a reader does with each type on which it does not agree.

    The types that it refuses are in files of their own.
    """
    refused = [name for name in KINDS if listed.get(name, "").startswith("refused")]
    groups = [[name] for name in refused]
    groups.append([name for name in KINDS if name not in refused])
    found: dict[str, list[str]] = {name: [] for name in KINDS}
    for group in groups:
        columns = draw(group)
        for is_shredded in (False, True):
            path = folder / f"{group[0]}-{is_shredded}.parquet"
            write(path, columns, is_shredded)
            others = _read_or_none(len(columns), read, path, list(columns))
            for (name, (column, _)), other in zip(columns.items(), others, strict=True):
                kind = name.partition(".")[0]
                found[kind].append(judge(kind, variant.to_json(column).to_pylist(), other))
    return {name: text for name, each in found.items() if (text := _summarize(each)) != "agrees"}


def _summarize(found: list[str]) -> str:
    """Return what a reader does with the Variants and documents, unshredded and shredded."""
    half = len(found) // 2
    if set(found[:half]) == {"agrees"} and set(found[half:]) == {"refused"}:
        return "refused if shredded"
    worst = max(found, key=_ANSWERS.index)
    has_refusals = "refused" in found and set(found) != {"refused"}
    return ", ".join(found) if has_refusals else worst


def draw(kinds: Sequence[str], seed: int = 15) -> dict[str, tuple[Any, Any]]:
    """Return for each kind a column of Variants, one of documents, and the types to shred them."""
    rng = random.Random(seed)
    columns: dict[str, tuple[Any, Any]] = {}
    for name in kinds:
        data_type, draw_one = KINDS[name]
        columns[name] = variant.from_python([draw_one(rng) for _ in range(_ROWS)]), data_type
        if name == "null":  # the documents of all kinds have nulls
            continue
        documents = [{"a": draw_one(rng), "b": [draw_one(rng), None]} for _ in range(_ROWS)]
        shredded = pa.struct([("a", data_type), ("b", pa.list_(data_type))])
        columns[f"{name}.document"] = variant.from_python(documents), shredded
    return columns


def write(path: Path, columns: Mapping[str, tuple[Any, Any]], is_shredded: bool) -> None:
    """Write a Parquet file of Variant columns."""
    schema = pa.schema([variant.field(name) for name in columns])
    table = pa.Table.from_arrays([column for column, _ in columns.values()], schema=schema)
    types = {name: data_type for name, (_, data_type) in columns.items()}
    variant.write_parquet(table, path, shred=types if is_shredded else {})


def _read_or_none(count: int, read: Callable[..., list[Texts]], *args: Any) -> list[Texts | None]:
    try:
        return [*read(*args)]
    except Exception:  # each reader has errors of its own
        return [None] * count


def compare_golden_files(
    folder: Path, target: Path, read: ReadFiles, listed: Mapping[str | int, str]
) -> dict[str | int, str]:
    """Return what a reader does with the Variants of parquet-testing where that is not listed.

    The files that it should read are read at once. A reader may agree on one Variant of a type on
    which it differs.
    """
    files = dict(list_golden_files(folder, target))
    expected = {name: _expect(name, kind, listed) for name, (_, kind, _) in files.items()}
    alone = [name for name, (_, _, own) in files.items() if own is None]
    alone += [name for name, text in expected.items() if text == "refused"]
    groups = [[name] for name in alone] + [[name for name in files if name not in alone]]
    found: dict[str | int, str] = {}
    for group in groups:
        others = _read_or_none(len(group), read, [files[name][0] for name in group])
        for name, other in zip(group, others, strict=True):
            _, kind, own = files[name]
            text = judge(kind, own, other)
            if text not in _list_possible(expected[name]):
                found[name] = text
    return found


def _list_possible(text: str) -> Sequence[str]:
    return _VALUES[: _VALUES.index(text) + 1] if text in _VALUES else [text]


def _expect(name: str | int, kind: str, listed: Mapping[str | int, str]) -> str:
    text = listed.get(name, listed.get(kind, "agrees"))
    if text == "refused if shredded":
        return "refused" if isinstance(name, int) else "agrees"
    return text


def list_golden_files(
    folder: Path, target: Path
) -> Iterator[tuple[str | int, tuple[Path, str, Texts | None]]]:
    """Yield the name or number, file, type and JSON texts of the Variants of parquet-testing."""
    for path in sorted((folder / "variant").glob("*.value")):
        pair = {"metadata": path.with_suffix(".metadata").read_bytes(), "value": path.read_bytes()}
        column = pa.array([pair], variant.field("var").type)
        file = target / f"{path.stem}.parquet"
        write(file, {"var": (column, None)}, is_shredded=False)
        yield path.stem, (file, find_kind(column), variant.to_json(column).to_pylist())
    for case in json.loads((folder / "shredded_variant" / "cases.json").read_text()):
        path = folder / "shredded_variant" / case.get("parquet_file", "none")
        if not path.is_file():
            continue
        try:
            column = variant.unshred(pq.read_table(path).column("var"))
        except InvalidDataError:
            yield case["case_number"], (path, "invalid", None)
            continue
        texts = variant.to_json(column).to_pylist()
        yield case["case_number"], (path, find_kind(column), texts)


def find_kind(column: Any) -> str:
    """Return the type of a column's first Variant."""
    first = next(row["value"][0] for row in column.to_pylist() if row is not None)
    if first & 3 != PRIMITIVE:
        return "document"
    return Kind(first >> 2).name.lower()


def judge(kind: str, own: Texts | None, other: Texts | None) -> str:
    """Return what a reader does, given our JSON texts and its own; None where a file is refused."""
    if own is None or other is None:
        return "agrees" if own is other else "accepted" if own is None else "refused"
    if own != other and other == [None if text == "null" else text for text in own]:
        return "SQL NULL"
    values = [_parse(texts) for texts in (own, other)]
    if values[0] == values[1]:
        return "agrees"
    normal = [_normalize(kind, each) for each in values]
    return "other text" if normal[0] == normal[1] else "other values"


def _parse(texts: Texts) -> list[Any]:
    """Return JSON with exact numbers; NaN and infinities without quotes are numbers, too."""
    exact: Any = {"parse_float": Decimal, "parse_int": Decimal, "parse_constant": Decimal}
    return [text and json.loads(text, **exact) for text in texts]


def _normalize(kind: str, value: Any) -> Any:
    """Return what the texts of a type mean, whoever wrote them."""
    if value is None:
        return None
    if isinstance(value, dict):
        return {name: _normalize(kind, each) for name, each in value.items()}
    if isinstance(value, list):
        return [_normalize(kind, each) for each in value]
    text = str(value)
    if kind == "float":
        return np.float32(text)
    if kind == "binary":
        return _parse_binary(text)
    if kind.startswith("time"):
        digits = (re.findall(r"\.(\d+)", text) or [""])[0].ljust(9, "0")
        if kind == "time_ntz":
            return text.partition(".")[0], digits
        instant = datetime.fromisoformat(text)
        utc = instant.utcoffset() or timedelta()
        return instant.tzinfo is None, instant.replace(tzinfo=None) - utc, digits
    return text


def _parse_binary(text: str) -> bytes:
    r"""Return the bytes of Base64 or of duckdb's text, which has ``\xNN``."""
    if "\\x" not in text:
        return base64.b64decode(text)
    return re.sub(r"\\x(..)", lambda found: chr(int(found[1], 16)), text).encode("latin-1")
