"""What a new user does first, with what the documentation says, and the mistakes on the way.

Each task is typed at a shell, with real servers. After each mistake, the error says what to do.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import trustme

from helpers.daemons import find_free_network
from helpers.terminal import Shell

ROWS = 1000
NO_TORCH = pytest.mark.skipif(not find_spec("torch"), reason="PyTorch is not installed")


@pytest.fixture
def host() -> str:
    """An address of the loopback interface that no other test uses, in the place of 127.0.0.1."""
    return f"{find_free_network()}.1"


@pytest.fixture
def shell(tmp_path: Path, host: str) -> Iterator[Shell]:
    """A shell in a folder with the Parquet files trips/0.parquet to trips/2.parquet."""
    (tmp_path / "trips").mkdir()
    hours = range(ROWS)
    for number in range(3):
        table = pa.table(
            {
                "n": range(number * ROWS, (number + 1) * ROWS),
                "pickup_at": [datetime(2026, 1, 1) + timedelta(hours=hour) for hour in hours],
                "day": [date(2026, 1, 1) + timedelta(days=hour // 24) for hour in hours],
                "payment": ["cash" if hour % 2 else "card" for hour in hours],
            }
        )
        pq.write_table(table, tmp_path / "trips" / f"{number}.parquet")
    # Where the documentation relies on the default, which is this port of 127.0.0.1.
    shell = Shell(tmp_path, {"SPLITARROW_LISTEN": f'["tcp://{host}:8816", "shm://"]'}, 180)
    try:
        yield shell
    finally:
        shell.stop_servers()


def refuse(shell: Shell, *cases: tuple[str, int, str]) -> None:
    """Run commands that fail with a status and one line, which contains a text."""
    for command, status, text in cases:
        shown = shell.run(command, status)
        assert shown.startswith("splitarrow: error: "), command
        assert text in shown, f"{command}\n{shown}"


@pytest.mark.slow
def test_a_folder_behind_tls_and_a_token(shell: Shell, host: str) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(shell.folder / "ca.pem")
    certificate = authority.issue_cert(host)
    certificate.cert_chain_pems[0].write_to_path(shell.folder / "server.pem")
    certificate.private_key_pem.write_to_path(shell.folder / "server-key.pem")
    shell.run("splitarrow token new tokens.toml training --datasets trips > training.token")

    uri = f"grpc+tls://{host}:8815"
    listen = f"splitarrow serve trips/ --control {uri} --listen tcp+tls://{host}:8816"
    tls = "--tls-cert server.pem --tls-key server-key.pem"
    refuse(
        shell,
        ("splitarrow serve trips/ --control grpc://0.0.0.0:8815", 1, "give --token-file or --jwks"),
        (f"{listen} --token-file tokens.toml", 1, "grpc+tls:// needs tls_cert"),
        (f"{listen} --token-file token.toml {tls}", 1, "token.toml: No such file"),
        (f"{listen} --token-file training.token {tls}", 1, "training.token is not TOML"),
    )
    shell.serve(f"{listen} --token-file tokens.toml {tls}")

    fetch = f"splitarrow fetch {uri}/trips -o trips.parquet"
    refuse(
        shell,
        (fetch.replace("+tls", ""), 1, f"requires TLS; use {uri}"),
        (fetch, 1, "name its authority with ca_file or SPLITARROW_TLS_CA"),
        (f"SPLITARROW_TLS_CA=a.pem {fetch}", 2, "cannot read a.pem: No such file"),
        (f"SPLITARROW_TLS_CA=ca.pem {fetch}", 1, "no token: "),
        (f"SPLITARROW_TLS_CA=ca.pem {fetch}", 1, "for commands SPLITARROW_TOKEN"),
        (f"SPLITARROW_TLS_CA=ca.pem SPLITARROW_TOKEN=x {fetch}", 1, "check the token: "),
    )
    export = 'export SPLITARROW_TLS_CA=ca.pem SPLITARROW_TOKEN="$(cat training.token)"; '
    refuse(shell, (f"{export} splitarrow fetch {uri}/trip", 1, "'training' may not read 'trip'"))
    shell.run(export + fetch)
    assert pq.read_table(shell.folder / "trips.parquet").num_rows == 3 * ROWS

    shown = shell.run_python(f"""
import splitarrow
from pathlib import Path
from splitarrow import TlsOptions
from splitarrow.errors import SplitArrowError, UsageError

token = Path("training.token").read_text()       # with the newline at its end
tls = TlsOptions(ca_file="ca.pem")
for options in {{}}, {{"tls": "ca.pem"}}, {{"tls": tls}}:
    try:
        splitarrow.connect("{uri}", **options)
    except SplitArrowError as error:
        print(error)
with splitarrow.connect("{uri}", token, tls=tls) as client:
    print(client["trips"].to_arrow(columns=["n"], filter="day = '2026-01-02'").num_rows, "rows")
""")
    said = ["name its authority with ca_file", "as in TlsOptions(ca_file=", "pass a token: token="]
    assert [text for text in said if text not in shown] == []
    assert shown.endswith(f"{3 * 24} rows")


@pytest.mark.torch
@NO_TORCH
def test_training_on_data_of_the_same_script(shell: Shell) -> None:
    shown = shell.run_python("""
import pyarrow as pa
import splitarrow
import torch
from splitarrow.errors import SplitArrowError
from splitarrow.pytorch import StreamDataset
from torch.utils.data import DataLoader

table = pa.table({"x": [n / 1000 for n in range(1000)], "y": [n / 500 for n in range(1000)]})
writer = pa.ipc.new_file("numbers.arrow", table.schema)
writer.write_table(table, max_chunksize=100)
try:
    splitarrow.serve("numbers.arrow")
except SplitArrowError as error:
    print("open:", error)
writer.close()

with splitarrow.serve("numbers.arrow") as server:
    try:
        StreamDataset(server.uri("numbers"), "numbers")
    except SplitArrowError as error:
        print("no control plane:", error)

with splitarrow.serve("numbers.arrow", control="grpc://127.0.0.1:0") as server:
    for columns in ["x", "z"], ["x", "y"]:
        try:
            dataset = StreamDataset(
                server.control_uri, "numbers", columns=columns, batch_rows=100, shuffle=True
            )
        except SplitArrowError as error:
            print("column:", error)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    loader = DataLoader(dataset, batch_size=None, num_workers=2)
    rows, losses = 0, []
    for epoch in range(5):
        dataset.set_epoch(epoch)
        for batch in loader:
            rows += len(batch["x"])
            predicted = model(batch["x"].float().unsqueeze(1)).squeeze(1)
            loss = torch.nn.functional.mse_loss(predicted, batch["y"].float())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    print(rows, "rows", losses[-1] < losses[0])
""")
    assert "open: " in shown
    assert "no control plane: " in shown
    assert "column: " in shown
    assert shown.endswith("5000 rows True"), shown


@pytest.mark.slow
def test_a_date_filter_in_a_shell(shell: Shell, host: str) -> None:
    shell.serve(f"splitarrow serve trips/ --control grpc://{host}:8815")
    fetch = f"splitarrow fetch grpc://{host}:8815/trips --filter"
    quotes = "single quotes, as in '2026-01-05"
    refuse(
        shell,
        # The shell removes the inner quotes.
        (f"{fetch} 'pickup_at < '2026-01-05''", 2, f"a date in {quotes}'"),
        (f'{fetch} "pickup_at < 2026-01-05"', 2, f"a date in {quotes}'"),
        (f"{fetch} 'pickup_at < \"2026-01-05\"'", 2, "in single quotes: '2026-01-05'"),
        (f"{fetch} \"pickup_at < '01/05/2026'\"", 2, f"a time in {quotes} 12:30:00'"),
        (f'{fetch} "pickup_at < 20260105"', 2, f"a time in {quotes} 12:30:00'"),
        (f"{fetch} 'payment = 'cash''", 2, "a text in single quotes: 'cash'"),
        (f"{fetch} \"pickup < '2026-01-05'\"", 2, "did you mean 'pickup_at'?"),
        # The shell writes a file.
        (f"{fetch} pickup_at > 2026-01-05", 2, "in a shell, put the whole condition in quotes"),
        (f"{fetch} pickup_at = 2026-01-05", 2, "put an argument with spaces in quotes"),
    )
    for condition, rows in [
        ("\"pickup_at < '2026-01-05'\"", 4 * 24),
        ("\"day = '2026-01-05'\"", 24),
        ("\"day between '2026-01-01' and '2026-01-02' and payment = 'cash'\"", 24),
    ]:
        shell.run(f"{fetch} {condition} -o days.parquet")
        assert pq.read_table(shell.folder / "days.parquet").num_rows == 3 * rows


@pytest.mark.slow
def test_a_lazy_scan_of_polars(shell: Shell, host: str) -> None:
    shell.serve(f"splitarrow serve trips/ --control grpc://{host}:8815 --listen tcp://{host}:8816")
    shown = shell.run_python(f"""
import polars as pl
import splitarrow
from datetime import date
from splitarrow.errors import SplitArrowError

with splitarrow.connect("grpc://{host}:8815") as client:
    def count_bytes(frame):
        before = client.status()["stats"]["bytes_sent"]
        frame = frame.collect()
        return frame, client.status()["stats"]["bytes_sent"] - before

    trips = client["trips"].scan_polars()
    day = pl.col("day") == date(2026, 1, 2)
    whole, all_bytes = count_bytes(trips)
    for frame, expected in [
        (trips.filter(day), whole.filter(day)),
        (trips.select("n"), whole.select("n")),
        (trips.head(10), whole.head(10)),
        (trips.filter(day).select("n").head(5), whole.filter(day).select("n").head(5)),
    ]:
        frame, sent = count_bytes(frame)
        assert frame.equals(expected), frame
        assert sent < all_bytes / 2, (sent, all_bytes)
    mistakes = [
        lambda: client["trip"].scan_polars(),
        lambda: client["trips"].scan_polars(columns=["n"]),
        lambda: pl.scan_parquet("grpc://{host}:8815/trips").collect(),
        lambda: trips.filter(pl.col("day") == "2026-01-02").collect(),
        lambda: trips.filter(pl.col("days") == date(2026, 1, 2)).collect(),
    ]
    for mistake in mistakes:
        try:
            mistake()
        except Exception as error:
            print(type(error).__name__, str(error).splitlines()[0])
print("end")
""")
    for text in [
        "no dataset 'trip'; the nearest is 'trips'",
        "a scan takes no columns; use select, filter and head of the LazyFrame",
        "create native python",
        'unable to find column "days"',
    ]:
        assert text in shown, shown
    assert shown.endswith("end")


@pytest.mark.slow
def test_two_daemons_on_one_host(shell: Shell, host: str) -> None:
    first, second = f"grpc://{host}:8815", f"grpc://{host}:8825"
    serve = "splitarrow serve --control"
    shell.serve(f"{serve} {first} --writable one")
    refuse(
        shell,
        (f"{serve} {second} --writable two", 1, f"any free one with --listen tcp://{host}:0"),
        (
            f"{serve} {first} --listen tcp://{host}:8826 --writable two",
            1,
            f"any free one with --control grpc://{host}:0",
        ),
        (f"{serve} {host}:8825", 2, f"as in {second}"),
        (f"{serve} {second} --listen tcp://{host}:8826 --writable one", 1, "one"),
    )
    shell.serve(f"{serve} {second} --listen tcp://{host}:8826 --writable two")
    for number in range(3):
        shell.run(f"splitarrow convert trips/{number}.parquet {number}.arrow")
    shown = shell.run_python(f"""
import splitarrow
from splitarrow.errors import SplitArrowError
from splitarrow.pipeline import publish_folder

files = ["0.arrow", "1.arrow", "2.arrow"]
try:
    publish_folder(["trips/0.parquet"], "trips", "grpc://{host}:8815,{host}:8825")
except SplitArrowError as error:
    print("parquet:", error)
publish_folder(files, "trips", "grpc://{host}:8815,{host}:8825")
with splitarrow.connect("grpc://{host}:8815,{host}:8825") as client:
    print(client["trips"].to_arrow()["n"].to_pylist() == list(range({3 * ROWS})))
""")
    assert "expected an Arrow IPC file, as splitarrow convert writes it" in shown
    assert shown.endswith("True")
    shell.run(f"splitarrow fetch grpc://{host}:8815,{host}:8825 trips -o all.parquet")
    assert pq.read_table(shell.folder / "all.parquet").num_rows == 3 * ROWS
