"""Write the figures of docs/figures.toml into the pages: ``make figures``.

A mark names a table of that file and some of its keys. The numbers that follow the mark are theirs,
in order::

    eight readers got <!-- figures workers: tcp_1 tcp_2 -->4.97 GB/s, with two workers 5.90

A number keeps the decimals that it has in the page, so a page may round. A mark must not begin a
line, because Markdown ends a paragraph at a comment there. The second part of the file follows from
the tables that the benchmarks write into benchmarks/results.md and docs/benchmarks.md.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FIGURES = ROOT / "docs" / "figures.toml"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TABLES = [ROOT / "benchmarks" / "results.md", ROOT / "docs" / "benchmarks.md"]
"""The pages with the tables of `splitarrow bench` and of Spark."""
_MARK = re.compile(r"<!-- figures (\S+): ([^>]+) -->")
_NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")
_MEASURED = "# --- measured: `make figures` writes this part ---\n"
_SIZES = ["4 KiB", "64 KiB", "1 MiB", "8 MiB", "64 MiB"]
_BACKENDS = ["splitarrow-tcp", "splitarrow-tcp-async", "splitarrow-shm", "flight"]
_UNITS = {"KiB": 2**10, "MiB": 2**20}
_CONSUMERS = {"count": "A client that counts rows", "sum": "A client that sums every column"}

Tables = dict[str, dict[str, float]]
"""Figures by table and key."""


def fill_page(text: str, tables: Tables) -> str:
    """Return a page with the numbers after each mark replaced.

    Raises
    ------
    KeyError
        If a mark names an unknown figure.
    ValueError
        If fewer numbers than names follow a mark.
    """
    parts = _MARK.split(text)
    filled = parts[0]
    for table, keys, rest in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        values = [tables[table][key] for key in keys.split()]
        new, count = _NUMBER.subn(_replace_in_turn(values), rest, count=len(values))
        if count < len(values):
            raise ValueError(f"{table}: {len(values)} names, but {count} numbers follow")
        filled += f"<!-- figures {table}: {keys} -->{new}"
    return filled


def _replace_in_turn(values: list[float]) -> Callable[[re.Match[str]], str]:
    rest = iter(values)

    def replace(found: re.Match[str]) -> str:
        decimals = len(found[0].partition(".")[2])
        return f"{next(rest):,.{decimals}f}"

    return replace


def read_figures(text: str) -> Tables:
    """Return the figures of the file by the dotted names of their tables."""
    tables: Tables = {}
    for name, content in tomllib.loads(text).items():
        for key, value in content.items():
            if isinstance(value, dict):
                tables[f"{name}.{key}"] = value
            else:
                tables.setdefault(name, {})[key] = value
    return tables


def fill_figures(text: str, benchmarks: str) -> str:
    """Return the text of the file with its second part as the benchmarks have measured it."""
    by_hand, found, _ = text.partition(_MEASURED)
    assert found, f"docs/figures.toml has lost the line {_MEASURED!r}"
    lines: list[str] = []
    for name, figures in measured_figures(benchmarks).items():
        lines += ["", f"[{name}]", *(f"{key} = {value:.6g}" for key, value in figures.items())]
    return by_hand + _MEASURED + "\n".join(lines[1:]) + "\n"


def measured_figures(benchmarks: str) -> Tables:
    """Return the figures that follow from the tables of the benchmarks."""
    bench = _between(benchmarks, "<!-- benchmark: begin -->", "<!-- benchmark: end -->")
    tables: Tables = {}
    for consume, heading in _CONSUMERS.items():
        tables |= _single_client(bench, consume, heading)
    clients = {
        f"{row['backend'].removeprefix('splitarrow-')}_{row['clients']}": _number(row["GB/s"])
        for row in _read_rows(bench)
        if "clients" in row
    }
    tables["clients"] = clients | {"eight_by_one": clients["tcp_8"] / clients["tcp_1"]}
    return tables


def _single_client(bench: str, consume: str, heading: str) -> Tables:
    """Return the figures of one kind of client: a table for each size, and one for all of them."""
    rows = {
        (row["batch"], row["backend"]): row
        for row in _read_rows(bench)
        if row.get("client") == consume
    }
    sizes = {size: _compare([rows[size, name] for name in _BACKENDS]) for size in _SIZES}
    mean = next(
        row
        for row in _read_rows(bench.partition(heading)[2])
        if row.get("batch") == "geometric mean"
    )
    cpu_ratios = [each["tcp_cpu_ratio"] for each in sizes.values()]
    first_ratios = [each["tcp_first_ratio"] for each in sizes.values()]
    overall = {
        "tcp_ratio": _number(mean["splitarrow-tcp"]),
        "async_ratio": _number(mean["splitarrow-tcp-async"]),
        "worst_tcp_ratio": min(each["tcp_ratio"] for each in sizes.values()),
        "worst_async_ratio": min(each["async_ratio"] for each in sizes.values()),
        "least_cpu_ratio": min(cpu_ratios),
        "most_cpu_ratio": max(cpu_ratios),
        "least_first_ratio": min(first_ratios),
        "most_first_ratio": max(first_ratios),
    }
    by_size = {f"{consume}.{size.replace(' ', '')}": each for size, each in sizes.items()}
    return {f"{consume}.all": overall, **by_size}


def _compare(rows: list[dict[str, str]]) -> dict[str, float]:
    """Return the figures of one size: GB/s, µs for a batch, and ratios to Flight's."""
    tcp, tcp_async, shm, flight = rows
    return {
        "tcp": _number(tcp["GB/s"]),
        "shm": _number(shm["GB/s"]),
        "flight": _number(flight["GB/s"]),
        "tcp_ratio": _number(tcp["× flight"]),
        "async_ratio": _number(tcp_async["× flight"]),
        "shm_ratio": _number(shm["× flight"]),
        "tcp_us": 1e6 / _number(tcp["batches/s"]),
        "shm_us": 1e6 / _number(shm["batches/s"]),
        "tcp_server_us": _microseconds(tcp, "server CPU s/GiB"),
        "tcp_client_us": _microseconds(tcp, "client CPU s/GiB"),
        "shm_server_us": _microseconds(shm, "server CPU s/GiB"),
        "shm_client_us": _microseconds(shm, "client CPU s/GiB"),
        "flight_server_us": _microseconds(flight, "server CPU s/GiB"),
        "flight_client_us": _microseconds(flight, "client CPU s/GiB"),
        "tcp_cpu_ratio": _number(tcp["CPU × flight"]),
        "tcp_first_ratio": _number(tcp["first batch ms"]) / _number(flight["first batch ms"]),
    }


def _microseconds(row: dict[str, str], heading: str) -> float:
    """Return the processor time for a batch, in microseconds."""
    count, unit = row["batch"].split()
    batches = 2**30 / (int(count) * _UNITS[unit])
    return 1e6 * _number(row[heading]) / batches


def _between(page: str, begin: str, end: str) -> str:
    return page.partition(begin)[2].partition(end)[0]


def _number(cell: str) -> float:
    return float(cell.strip("()").replace(",", ""))


def _read_rows(page: str) -> Iterator[dict[str, str]]:
    """Yield the rows of all tables of a page, each as cells by their headings."""
    headings: list[str] = []
    for line in page.splitlines():
        if not line.startswith("|"):
            headings = []
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not headings:
            headings = cells
        elif set(line) - set("|-: "):
            yield dict(zip(headings, cells, strict=True))


def main() -> None:
    """Update the file of figures, then the pages."""
    benchmarks = "".join(page.read_text() for page in TABLES)
    FIGURES.write_text(fill_figures(FIGURES.read_text(), benchmarks))
    tables = read_figures(FIGURES.read_text())
    for page in PAGES:
        text = page.read_text()
        if (filled := fill_page(text, tables)) != text:
            page.write_text(filled)


if __name__ == "__main__":
    main()
