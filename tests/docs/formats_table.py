"""Write the table "Arrow types" of docs/formats.md from a real run: ``make formats``.

Each column of `make_type_examples` is written in each format and read again.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import pyarrow as pa

from helpers.package import ROOT
from helpers.round_trips import RefusedError, judge, make_type_examples, write_sink

PAGE = ROOT / "docs" / "formats.md"
FORMATS = {"Parquet": ".parquet", "Vortex": ".vortex", "CSV": ".csv", "JSON Lines": ".jsonl"}
MEANINGS = {
    "yes": "the same values and the same type",
    "other type": "the same values in the nearest type that the format has",
    "as text": "the values come back as text",
    "refused": "an error in one line, and no file",
    "other values": "some values come back changed, or not at all",
}
OUTCOMES = list(MEANINGS)
_BEGIN, _END = "<!-- types: begin -->\n", "<!-- types: end -->"


def find_row(name: str) -> str:
    """Return the type that an example has, without parameters."""
    return re.split(r"[\[(]| of (?!0)| by | with(?:out)? ", name)[0]


def try_format(folder: Path, name: str, table: pa.Table, suffix: str) -> str:
    """Write a table, read it again, and return the outcome."""
    path = folder / f"out{suffix}"
    path.unlink(missing_ok=True)
    try:
        write_sink(path, table)
    except RefusedError:
        return "refused"
    except (OverflowError, KeyError):
        return "other values"
    outcome = judge(name, table, path, others=False)
    return outcome if outcome in OUTCOMES else "other values"


def make_table() -> str:
    """Return the meanings of the outcomes, and the table. Types with the same ones share a row."""
    cells: dict[str, dict[str, set[str]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, table in make_type_examples().items():
            row = cells.setdefault(find_row(name), {each: set() for each in FORMATS})
            for each, suffix in FORMATS.items():
                row[each].add(try_format(Path(folder), name, table, suffix))
    rows: dict[tuple[str, ...], list[str]] = {}
    for name, found in cells.items():
        outcomes = [", ".join(sorted(each, key=OUTCOMES.index)) for each in found.values()]
        rows.setdefault(tuple(outcomes), []).append(f"`{name}`")
    lines = [("types", *FORMATS), ("---",) * (1 + len(FORMATS))]
    lines += [(", ".join(names), *outcomes) for outcomes, names in rows.items()]
    used = {each for found in cells.values() for outcomes in found.values() for each in outcomes}
    meanings = [f"- *{each}*: {MEANINGS[each]}" for each in OUTCOMES if each in used]
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return ";\n".join(meanings) + f".\n\n{table}"


def fill_page(text: str, table: str) -> str:
    """Return the page with another table."""
    before, _, rest = text.partition(_BEGIN)
    return before + _BEGIN + table + _END + rest.partition(_END)[2]


if __name__ == "__main__":
    PAGE.write_text(fill_page(PAGE.read_text(), make_table()))
