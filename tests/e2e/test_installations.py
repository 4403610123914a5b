"""The same programs run from a checkout, from a wheel in an empty environment, and in a notebook.

Each is what new users write. Narrower tests have the details.
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from helpers.package import copy_sources
from helpers.terminal import Shell

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

SECONDS = 300.0
"""The longest time for a program, in seconds."""
UV = Path(sys.executable).parent / "uv"

PRELUDE = """
import subprocess
from datetime import datetime

import pyarrow as pa
import splitarrow
from splitarrow.testing import Daemon

TIMES = [datetime(2026, 1, day) for day in range(1, 11)]
TABLE = pa.table(
    {
        "n": range(10),
        "pickup_at": pa.array(TIMES, pa.timestamp("ns")),
        "local": pa.array(TIMES, pa.timestamp("us", "Europe/Rome")),
        "payment": ["cash", "card"] * 5,
    }
)
with pa.ipc.new_file("t.arrow", TABLE.schema) as writer:
    writer.write_table(TABLE)

def serve(**settings):
    return splitarrow.serve({"t": TABLE}, control="grpc://127.0.0.1:0", **settings)

def command(line):
    done = subprocess.run(f"splitarrow {line}", shell=True, capture_output=True, text=True)
    print(done.returncode, done.stdout, done.stderr)

def attempt(call, *arguments, **options):
    try:
        print(call(*arguments, **options))
    except Exception as error:
        print(type(error).__name__, error)
"""


@dataclass(frozen=True)
class Program:
    """A program, and what it shows."""

    name: str
    code: str
    shown: list[str]
    """Texts of its output, in this order."""
    status: int = 0
    command: str = "python program.py"
    in_notebook: bool = True


PROGRAMS = [
    Program(
        "serves and ends",
        """
server = serve()
client = splitarrow.connect(server.control_uri)
print(client["t"].to_arrow().num_rows, "rows")
""",
        ["10 rows"],
    ),
    Program("ends after an exception", "server = serve()\n1 / 0", ["ZeroDivisionError"], status=1),
    Program("exit", "server = serve()\nexit(3)", [], status=3, in_notebook=False),
    Program(
        "interactive",
        "server = serve()\nprint('serves')",
        ["serves"],
        command="python -i -q program.py < /dev/null",
        in_notebook=False,
    ),
    Program(
        "conditions at a shell",
        """
with serve() as server:
    for condition in ["pickup_at < 2026-01-05", 'payment = "cash"', "pickup_at < '2026-01-05'"]:
        quoted = condition.replace('"', '\\\\"')
        command(f'fetch {server.control_uri}/t --filter "{quoted}" -o days.csv')
""",
        [
            "2 ",
            "write the result, or a date in single quotes, as in '2026-01-05'",
            "2 ",
            "write a text in single quotes: 'cash'",
            "0 ",
            "t: 4 rows",
        ],
    ),
    Program(
        "dates",
        """
with serve() as server, splitarrow.connect(server.control_uri) as client:
    for column in "pickup_at", "local":
        print(len(client["t"].to_arrow(filter=f"{column} < '2026-01-05'")), "rows")
    attempt(client["t"].to_arrow, filter="pickup_at < 2026-01-05")
""",
        ["4 rows", "4 rows", "UsageError", "'2026-01-05'"],
    ),
    Program(
        "data frames",
        """
import pandas, polars
with serve() as server, splitarrow.connect(server.control_uri) as client:
    attempt(pandas.DataFrame, client["t"])
    print(type(polars.from_arrow(client["t"])).__name__, len(client["t"].to_pandas()), "rows")
""",
        ["to_pandas()", "DataFrame 10 rows"],
    ),
    Program(
        "upload that is refused",
        """
with open("x.csv", "w") as file:
    print("n\\n1\\n2", file=file)
with serve() as server:
    command(f"put {server.control_uri} x x.csv")
""",
        ["1 ", "splitarrow: error: ", "start it with --writable FOLDER"],
    ),
    Program(
        "upload of CSV",
        """
with open("x.csv", "w") as file:
    print("n\\n1\\n2", file=file)
with serve(writable="uploads") as server, splitarrow.connect(server.control_uri) as client:
    command(f"put {server.control_uri} x x.csv")
    print(client["x"].to_arrow()["n"].to_pylist())
""",
        ["0 ", "[1, 2]"],
    ),
    Program(
        "file of the same process",
        """
with splitarrow.serve("t.arrow") as server:
    print(splitarrow.open(server.uri("t")).read_all().num_rows, "rows")
file = pa.ipc.new_file("late.arrow", TABLE.schema)
file.write_table(TABLE)
file.close()
with splitarrow.serve("late.arrow") as server:
    print(splitarrow.open(server.uri("late")).read_all().num_rows, "rows")
""",
        ["10 rows", "10 rows"],
    ),
    Program(
        "second server",
        """
with Daemon({"t": "t.arrow"}, control="grpc://127.0.0.1:0") as first:
    command(f"serve t.arrow --control {first.control_uri} --listen tcp://127.0.0.1:0")
""",
        ["1 ", "cannot listen on grpc://", "any free one with --control grpc://127.0.0.1:0"],
    ),
    Program(
        "wrong addresses and names",
        """
with serve() as server:
    command(f"fetch {server.control_uri.replace('grpc', 'http')}/t")
    command("serve t.arrow --control 127.0.0.1:8835")
    command(f"fetchh {server.control_uri}/t")
    attempt(splitarrow.connect, server.control_uri, tls="server.pem")
""",
        [
            "1 ",
            "does not answer as an HTTP server",
            "needs grpc://",
            "2 ",
            "as in grpc://127.0.0.1:8835",
            "2 ",
            "did you mean 'fetch'?",
            "expected splitarrow.TlsOptions",
        ],
    ),
    Program(
        "token with a newline",
        """
import os
with open(os.open("tokens.toml", os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
    file.write('[[tokens]]\\nname = "a"\\ntoken = "a-token-of-the-tests"\\ndatasets = ["*"]')
with serve(token_file="tokens.toml") as server:
    with splitarrow.connect(server.control_uri, "a-token-of-the-tests\\n") as client:
        print(list(client))
    attempt(splitarrow.connect, server.control_uri)
""",
        ["['t']", "DeniedError", "pass a token: token="],
    ),
]
WORKERS = Program(
    "workers beside a server",
    """
from splitarrow.pytorch import StreamDataset
from torch.utils.data import DataLoader
with serve() as server:
    dataset = StreamDataset(server.control_uri, "t", columns=["n"], batch_rows=2)
    loader = DataLoader(dataset, batch_size=None, num_workers=2)
    print(sum(len(batch["n"]) for batch in loader), "rows")
""",
    ["10 rows"],
)
HAS_TORCH = find_spec("torch") is not None
IF_TORCH = [pytest.mark.torch, pytest.mark.skipif(not HAS_TORCH, reason="PyTorch is missing")]


def name(program: Program) -> str:
    return program.name.replace(" ", "-")


def check(program: Program, output: str) -> None:
    """Check that the expected texts are in an output, in their order."""
    pattern = ".*".join(map(re.escape, program.shown))
    assert re.search(pattern, " ".join(output.split()), re.DOTALL), f"{program.name}\n{output}"


def run(program: Program, shell: Shell) -> None:
    (shell.folder / "program.py").write_text(PRELUDE + program.code)
    check(program, shell.run(program.command, program.status))


@pytest.mark.parametrize("program", [*PROGRAMS, pytest.param(WORKERS, marks=IF_TORCH)], ids=name)
def test_a_checkout(program: Program, tmp_path: Path) -> None:
    run(program, Shell(tmp_path, seconds=SECONDS))


@pytest.fixture(scope="session")
def wheel_environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with nothing but the wheel, an extra, and the libraries of data frames."""
    if not UV.exists():
        pytest.skip("uv is not installed; make test-slow installs it")
    folder = tmp_path_factory.mktemp("wheel")
    environment = folder / "environment"
    copy_sources(folder / "source")
    build = ["build", "--quiet", "--wheel", "--out-dir", folder, folder / "source"]
    subprocess.run([UV, *build], check=True)
    subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, environment], check=True)
    (wheel,) = folder.glob("*.whl")
    install = ["pip", "install", "--quiet", "--python", environment / "bin" / "python"]
    subprocess.run([UV, *install, f"{wheel}[cert]", "pandas", "polars"], check=True)
    return environment


# The longest ones run from a checkout, too.
_LONG = ("conditions-at-a-shell", "data-frames", "dates", "upload-of-CSV")


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(each, marks=pytest.mark.long if name(each) in _LONG else ())
        for each in PROGRAMS
    ],
    ids=name,
)
@pytest.mark.xdist_group("wheel")
def test_a_wheel(program: Program, wheel_environment: Path, tmp_path: Path) -> None:
    path = {"PATH": f"{wheel_environment / 'bin'}:/usr/bin:/bin", "PYTHONPATH": ""}
    run(program, Shell(tmp_path, path, SECONDS))


def test_a_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The programs are the cells of one notebook, whose kernel then ends."""
    known = [*PROGRAMS, WORKERS] if HAS_TORCH else PROGRAMS
    programs = [program for program in known if program.in_notebook]
    for variable in ("HOME", "IPYTHONDIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(variable, str(tmp_path))
    monkeypatch.setenv("PATH", Shell(tmp_path).environment["PATH"])
    cells = [PRELUDE, *(program.code for program in programs)]
    notebook = nbformat.v4.new_notebook(cells=[*map(nbformat.v4.new_code_cell, cells)])
    NotebookClient(
        notebook,
        timeout=SECONDS,
        allow_errors=True,
        resources={"metadata": {"path": str(tmp_path)}},
    ).execute()
    for program, cell in zip(programs, notebook.cells[1:], strict=True):
        texts = [output.get("text", output.get("ename", "")) for output in cell.outputs]
        check(program, "".join(texts))
        failed = any(output.output_type == "error" for output in cell.outputs)
        assert failed == bool(program.status), "".join(texts)
