"""Short addresses, filters, text formats and completion of ``splitarrow``, as a user types them."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pytest

import splitarrow
from helpers.cli import Run
from splitarrow.cli.completion import complete_name, complete_transport, complete_uri
from splitarrow.cli.fetch import parse_ranges
from splitarrow.cli.serve import print_banner
from splitarrow.errors import UsageError

FLIGHTS = pa.table({"carrier": ["AA", "BB", "AA"], "delay": [70, 90, 5]})
VARIED = pa.table(
    {
        "n": [1, None],
        "x": [1.5, float("nan")],
        "code": pa.array(["a, b", None]).dictionary_encode(),
        "at": pa.array([datetime(2026, 1, 2, 3, tzinfo=UTC), None], pa.timestamp("ns", "UTC")),
        "day": pa.array([date(2026, 1, 2), None]),
        "price": pa.array([Decimal("1.20"), None]),
    }
)
NESTED = pa.table({"list": [[1.0, float("inf")]], "bytes": [b"\xff"], "st": [{"a": "ü"}]})


@pytest.fixture(scope="module")
def server() -> Iterator[splitarrow.Server]:
    datasets = {"flights": FLIGHTS, "flows": FLIGHTS, "varied": VARIED, "nested": NESTED}
    with splitarrow.serve(datasets, control="grpc://127.0.0.1:0") as server:
        yield server


@pytest.fixture
def control(server: splitarrow.Server) -> str:
    return server.control_uri or ""


@pytest.mark.parametrize("form", range(4))
def test_every_form_of_an_address(
    run: Run, server: splitarrow.Server, control: str, tmp_path: Path, form: int
) -> None:
    tcp = server.listen[0].partition("?")[0]
    arguments = (
        [control, "flights"],
        [f"{control}/flights"],
        [f"{control.removeprefix('grpc://')}/flights"],
        [f"{tcp}/flights"],
    )[form]
    condition = ["--filter", "delay > 60 and carrier = 'AA'", "--columns", "delay"]
    done = run("fetch", *arguments, *condition, "-o", "out.csv", "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "out.csv").read_text() == '"delay"\n70\n'


@pytest.mark.slow
def test_text_on_standard_output(run_process: Run, control: str) -> None:
    for text_format, text in (("csv", '"delay"\n70\n'), ("jsonl", '{"delay": 70}\n')):
        options = ["--columns", "delay", "--limit", "1", "-q", "-o", "-", "--format", text_format]
        assert run_process("fetch", f"{control}/flights", *options).stdout == text


@pytest.mark.slow
def test_the_format_of_messages_and_that_of_the_output(run_process: Run, control: str) -> None:
    pytest.importorskip("vortex")
    options = ["--limit", "1", "-q", "-o", "-", "--format", "vortex", "--output-format", "jsonl"]
    done = run_process("fetch", f"{control}/flights", *options)
    assert (done.stdout, done.stderr) == ('{"carrier": "AA", "delay": 70}\n', "")


def test_csv_has_the_values(run: Run, control: str, tmp_path: Path) -> None:
    assert run("fetch", f"{control}/varied", "-o", "out.csv").returncode == 0
    rows = list(csv.reader(io.StringIO((tmp_path / "out.csv").read_text())))
    assert rows == [
        ["n", "x", "code", "at", "day", "price"],
        ["1", "1.5", "a, b", "2026-01-02 03:00:00.000000000Z", "2026-01-02", "1.20"],
        ["", "nan", "", "", "", ""],
    ]


def test_json_lines_have_the_values(run: Run, control: str, tmp_path: Path) -> None:
    for name in ("varied", "nested"):
        assert run("fetch", f"{control}/{name}", "-o", f"{name}.jsonl").returncode == 0
    lines = (tmp_path / "varied.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {
            "n": 1,
            "x": 1.5,
            "code": "a, b",
            "at": "2026-01-02 03:00:00.000000000Z",
            "day": "2026-01-02",
            "price": "1.20",
        },
        dict.fromkeys(VARIED.schema.names) | {"x": "NaN"},
    ]
    nested = json.loads((tmp_path / "nested.jsonl").read_text())
    assert nested == {"list": [1.0, "Infinity"], "bytes": "/w==", "st": {"a": "ü"}}


def test_csv_refuses_nested_columns(run: Run, control: str, tmp_path: Path) -> None:
    done = run("fetch", f"{control}/nested", "-o", "out.csv")
    assert done.returncode == 2
    assert "write to .jsonl or .parquet instead" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_info_takes_the_address_of_a_dataset(run: Run, control: str) -> None:
    done = run("info", f"{control}/flights", "--json")
    assert json.loads(done.stdout)["name"] == "flights"
    assert json.loads(run("ls", control.removeprefix("grpc://"), "--json").stdout)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fetch", "CONTROL"], "name a dataset: splitarrow fetch CONTROL NAME"),
        (["info", "CONTROL"], "(splitarrow ls CONTROL lists the names)"),
        (["fetch", "CONTROL/a", "b"], "already names a dataset; leave 'b' out"),
        (["fetch", "CONTROL/flights", "--filter", "dealy > 1"], "did you mean 'delay'"),
        (["fetch", "CONTROL/flights", "--transport", "rdma"], "choose one of auto, inproc, tcp"),
        (["fetch", "CONTROL/flights", "--shards", "1-"], None),
        (["fetch", "CONTROL/flights", "--shards", "x"], "expected numbers such as 0,2,5-8"),
        (["fetch", "CONTROL/flights", "--format", "csv"], "add -o -"),
        (
            ["fetch", "CONTROL/flights", "--format", "csv", "--output-format", "jsonl"],
            "--format csv and --output-format jsonl: give only one",
        ),
        (["convert", "CONTROL/flights", "-", "--format", "vortex"], "'vortex' is not one of"),
        (["fetch", "tcp://h/a", "--shards", "1"], "--shards: only for a control plane"),
        (["fetch", "tcp://h/a", "--version", "1", "--token", "t"], "--version, --token: only"),
        (["fetch", "tcp://h/a", "--ticket", "b"], "already has a ticket"),
    ],
)
def test_wrong_usage_is_explained(
    run: Run, control: str, arguments: list[str], message: str | None
) -> None:
    done = run(*(argument.replace("CONTROL", control) for argument in arguments))
    assert done.returncode == 2
    if message is not None:
        assert message.replace("CONTROL", control) in done.stderr


def test_options_of_datasets(run: Run, control: str) -> None:
    version = json.loads(run("info", f"{control}/flights", "--json").stdout)["version"]
    options = ["--version", version, "--shards", "0", "--parallel", "2", "--json", "-q"]
    done = run("fetch", f"{control}/flights", *options)
    assert json.loads(done.stdout)["rows"] == 3, done.stderr


def test_ranges_of_shards() -> None:
    assert parse_ranges("0, 2,5-7") == [0, 2, 5, 6, 7]
    for wrong in ("", "a", "1-b", "1,,2", "-1"):
        with pytest.raises(UsageError, match="--shards"):
            parse_ranges(wrong)


def test_the_shell_completes_names(control: str) -> None:
    context = mock.Mock(params={"uri": control})
    assert complete_name(context, "fl") == ["flights", "flows"]
    assert complete_uri(f"{control}/fli") == [f"{control}/flights"]
    assert complete_transport("t") == ["tcp", "tcp+tls"]
    for uri in (None, "", "tcp://h/a", "grpc://127.0.0.1:1"):
        assert complete_name(mock.Mock(params={"uri": uri}), "") == []
    for uri in ("", "grpc:/", "grpc://", "tcp://h/", "grpc://127.0.0.1:1/"):
        assert complete_uri(uri) == []


def test_the_shell_asks_the_program(run_process: Run, control: str) -> None:
    port = control.rpartition(":")[2]
    address = ["grpc", ":", "//127.0.0.1", ":"]  # as bash splits it
    for last, expected in (
        ([port, "fl"], ["flights", "flows"]),
        ([f"{port}/fl"], [f"{port}/flights", f"{port}/flows"]),
    ):
        words = ["splitarrow", "fetch", *address, *last]
        environment = {
            "_SPLITARROW_COMPLETE": "complete_bash",
            "COMP_WORDS": "\n".join(words),
            "COMP_CWORD": str(len(words) - 1),
            "PATH": "/usr/bin:/bin",
        }
        assert run_process(env=environment).stdout.split() == expected


def test_the_banner_leads_with_the_control_plane(
    server: splitarrow.Server, control: str, capsys: pytest.CaptureFixture[str]
) -> None:
    print_banner(server._daemon)
    shown = capsys.readouterr().out
    assert f"  splitarrow fetch {control} flights -o flights.arrow\n" in shown
    assert f"client = splitarrow.connect({control!r})\n  client['flights'].to_pandas()" in shown
    assert "want_data" not in shown


def test_the_banner_without_a_control_plane_has_short_uris(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with splitarrow.serve({"flights": FLIGHTS}) as server:
        print_banner(server._daemon)
        shown = capsys.readouterr().out
        uri = f"{server.listen[0].partition('?')[0]}/flights"
        assert f"  splitarrow fetch {uri} -o flights.arrow\n" in shown
        assert f"splitarrow.open({uri!r}).to_pandas()" in shown
        assert splitarrow.open(uri).read_all() == FLIGHTS


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        ('carrier = "AA"', "there is no column 'AA'; write a text in single quotes: 'AA'"),
        ('carrier = "it\'s"', "single quotes: 'it''s'"),
        ('"carier" = 1', "did you mean 'carrier'? Write a text in single quotes: 'carier'"),
        ("carrier = AA", "there is no column 'AA'; write a text in single quotes: 'AA'"),
        ("delay", "compare it with a value; in a shell, put the whole condition in quotes"),
        ("delay = = 1", "the filter 'delay = = 1' is malformed near '=': a value is missing"),
    ],
)
def test_a_filter_that_does_not_fit(run: Run, control: str, condition: str, said: str) -> None:
    done = run("fetch", f"{control}/flights", "--filter", condition)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith(f"{said}\n")


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELECT * FROM flights WHERE delay = = 1", "malformed near '=': a value is missing"),
        ("SELEC 1", "malformed near '1': Invalid expression / Unexpected token"),
        ("SELECT f( FROM flights", "malformed near 'flights': Expecting )"),
        ("SELECT late FROM flights", 'the query failed: Binder Error: Referenced column "late"'),
    ],
)
def test_a_malformed_query(run: Run, control: str, query: str, said: str) -> None:
    done = run("fetch", control, "--sql", query)
    assert done.returncode == 2
    assert said in done.stderr
    assert "\x1b" not in done.stderr
    assert "x1b" not in done.stderr


def test_an_extra_that_is_missing(run_process: Run, control: str, tmp_path: Path) -> None:
    (tmp_path / "duckdb.py").write_text("raise ImportError(name=__name__)")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = run_process("fetch", control, "--sql", "SELECT * FROM flights", env=environment)
    said = (
        "SQL needs the package 'duckdb': pip install 'splitarrow[sql]' (in a checkout: "
        "pip install '.[sql]')"
    )
    assert (done.returncode, done.stderr) == (2, f"splitarrow: error: {said}\n")


def test_a_query(run: Run, control: str, tmp_path: Path) -> None:
    query = "SELECT carrier, sum(delay) AS delay FROM flights GROUP BY carrier ORDER BY carrier"
    done = run("fetch", control, "--sql", query, "-o", "out.csv")
    assert (done.returncode, done.stderr[:14]) == (0, "query: 2 rows,")
    assert (tmp_path / "out.csv").read_text() == '"carrier","delay"\n"AA",75\n"BB",90\n'
    done = run("fetch", control, "flights", "--sql", query, "--limit", "1")
    assert "--sql cannot be combined with 'flights', --limit" in done.stderr
    assert "--sql: only for a control plane" in run("fetch", "tcp://h/a", "--sql", "x").stderr
