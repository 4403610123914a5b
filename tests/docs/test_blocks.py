"""Every code block of the documentation runs, or is listed below.

Those of the README run in test_readme.py.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import trustme
from deltalake import write_deltalake
from pyarrow import csv, fs

from helpers.cli import COMMAND, read
from helpers.files import write_file
from helpers.issuer import serve_keys
from helpers.page_blocks import PAGES as ALL_PAGES
from helpers.page_blocks import Block, name_page, read_blocks
from helpers.page_session import PageSession
from splitarrow.benchmarks.datasets import write_trips
from splitarrow.publication.version_store import VersionStore

# The blocks that do not run, by their page and the beginning of their code.
NOT_RUN = {
    ("docs/guide/gpu.md", "import splitarrow\nimport torch"): "a GPU",
    ("docs/guide/gpu.md", "import cupy"): "a GPU",
    ("docs/guide/gpu.md", "from splitarrow.memory import CudaMemory"): "a GPU",
    ("docs/guide/pytorch-tensors.md", 'dataset = StreamDataset("grpc://node1"'): "a GPU",
    ("docs/guide/spark.md", "$ JOB="): "a cluster of Spark; see tests/pipeline/test_cluster.py",
    ("docs/guide/kubernetes.md", ""): "Kubernetes; see tests/deploy",
    ("docs/guide/spark-clusters.md", ""): "YARN and Kubernetes",
    ("docs/operations.md", "# python3 -m venv /opt"): "root and systemd; see tests/deploy",
    ("docs/operations.md", "$ docker build"): "Docker; see tests/deploy",
    ("docs/monitoring.md", "$ docker compose"): "Docker; see tests/deploy",
}

PAGES = [page for page in ALL_PAGES if page.name != "README.md"]
BLOCKS = [block for page in PAGES for block in read_blocks(page)]
TOKEN = "a-token-of-the-tests"
ISSUER = "login.example.com"
Issuer = tuple[dict[str, str], dict[str, str]]
"""The hosts that stand in for the one that a page names, and the variables of its commands."""
DELTA_PAGE = "docs/guide/serving.md"
# Not code. Other tests compare the drawings and the bytes with the code.
_ILLUSTRATIONS = {"dockerfile", "js", "mermaid", "sql", "text", "yaml"}
# Pages on which a block needs those before it.
_LEVELS = {
    "docs/guide/arrays.md": "torch",
    "docs/guide/loader-failures.md": "torch",
    "docs/guide/loader-metrics.md": "torch",
    "docs/guide/mixing.md": "torch",
    "docs/guide/packing.md": "torch",
    "docs/guide/pytorch.md": "torch",
    "docs/guide/several-daemons.md": "long",
    "docs/guide/spark.md": "long",
    "docs/monitoring.md": "long",
    "docs/operations.md": "long",
    "docs/security.md": "long",
    "docs/transports.md": "long",
}
# The packages that `make test-frameworks` installs, if it can: one of a page, and those that have a
# level of their own. Their blocks are independent of each other.
_PACKAGES = {"docs/guide/arrays.md": "jax"}
_FRAMEWORKS = {"lightning", "ray", "datasets"}
_LONG = re.compile(r"s3://|splitarrow\.benchmarks|pipeline\.session")
_DEFERRED = re.compile(r"\bspark\b|torch|StreamDataset")
# What holds after the Python of a page has run, by its level.
_CHECKS = {
    ("docs/guide/pytorch.md", "torch"): """
assert sum(losses[-10:]) / 10 < 0.9 * sum(losses[:3]) / 3
assert sum(len(batch["delay"]) for batch in rest) == 200_000 - 20 * 4096
assert len(next(iter(loader))["delay"]) == 256
""",
    ("docs/guide/trainers.md", "lightning"): """
class SeenDelays(Delays):
    def training_step(self, batch, index):
        seen.extend(batch["delay"].tolist())
        return super().training_step(batch, index)

def fit(**arguments):
    seen.clear()
    lightning.Trainer(**options).fit(SeenDelays(), Flights(), **arguments)
    return [*seen]

seen = []
assert fit(ckpt_path="checkpoints/step=20.ckpt") == fit()[20 * 4096 :]
""",
    ("docs/guide/trainers.md", "ray"): """
assert result.metrics["batches"] == 25
""",
    ("docs/guide/trainers.md", "datasets"): """
assert min(late["delay"]) > 60
assert sum(1 for _ in shuffled) == 200_000
""",
}


def find_level(block: Block) -> str:
    """Return which tests run a block: the quick or long ones, those with PyTorch or a framework.

    Commands take a while: each is a process, and many are several.
    """
    for framework in _FRAMEWORKS:
        if re.search(rf"^import {framework}\b", block.code, re.MULTILINE):
            return framework
    if "import torch" in block.code:
        return "torch"
    takes_long = block.language == "console" or _LONG.search(block.code)
    return "long" if takes_long else _LEVELS.get(block.page, "quick")


def is_run(block: Block) -> bool:
    return block.language not in _ILLUSTRATIONS and find_reason(block) is None


def blocks_to_run(page: str, level: str) -> list[Block]:
    """Return the blocks of a page that a test runs, in order: the quick ones, and one level."""
    return [
        block
        for block in BLOCKS
        if block.page == page and is_run(block) and find_level(block) in ("quick", level)
    ]


def find_reason(block: Block) -> str | None:
    """Return the reason why a block does not run, if it is listed."""
    for (page, beginning), reason in NOT_RUN.items():
        if page == block.page and block.code.startswith(beginning):
            return reason
    return None


def make_cases() -> Iterator[Any]:
    """Yield each page with each level of its blocks."""
    for page in map(name_page, PAGES):
        levels = {find_level(block) for block in BLOCKS if block.page == page and is_run(block)}
        for level in sorted(levels):
            marks = {
                "quick": [],
                "long": [pytest.mark.long, pytest.mark.timeout(2400)],
                "torch": [pytest.mark.torch, pytest.mark.timeout(2400)],
            }
            marks |= dict.fromkeys(_FRAMEWORKS, marks["torch"])
            marks["ray"] = [*marks["torch"], pytest.mark.long]  # its cluster takes a minute
            yield pytest.param(page, level, id=f"{page}-{level}", marks=marks[level])


@pytest.fixture(scope="session")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that pages name."""
    folder = tmp_path_factory.mktemp("stock")
    rows = 200_000
    numbers = range(rows)
    flights = pa.table(
        {
            "carrier": pa.array(["AA", "BB", "CC", "DD"] * (rows // 4)),
            "delay": pa.array([n * 7919 % 240 % (n % 24 * 4 + 1) for n in numbers], pa.int16()),
            "distance": pa.array([n * 31 % 2900 + 100 for n in numbers], pa.int16()),
            "time": pa.array([float(n % 24) for n in numbers], pa.float32()),
        }
    )
    flights = pa.Table.from_batches(flights.to_batches(10_000), flights.schema)
    for path in ("flights.arrow", "data/flights.arrow", "root/data/flights.arrow"):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        write_file(folder / path, flights)
    write_trips(folder / "trips.arrow", 5000)
    trips = read(folder / "trips.arrow")
    for name in ("january", "february", "data/trips"):
        shutil.copy(folder / "trips.arrow", folder / f"{name}.arrow")
    for path in ("trips", "data/trips", "root/data/trips"):
        (folder / path).mkdir()
        for number in range(3):
            pq.write_table(trips.slice(number * 1500, 1500), folder / path / f"{number}.parquet")
    pq.write_table(flights.slice(0, 1000), folder / "scores.parquet")
    for name in ("trips.vortex", "trips.vortexs"):
        subprocess.run([*COMMAND, "convert", "trips.arrow", name], cwd=folder, check=True)
    np.save(folder / "embeddings.npy", np.ones((100, 8), "f4"))
    riders = pa.array([f"rider {n % 200}" for n in range(len(trips))])
    csv.write_csv(trips.select(["fare", "tip"]).append_column("rider", riders), folder / "raw.csv")
    for path in ("uploads", "root/run/splitarrow", "root/tmp/uploads"):
        (folder / path).mkdir(parents=True)
    (folder / "tokens.toml").write_text(
        f'[[tokens]]\nname = "tests"\ntoken = "{TOKEN}"\ndatasets = ["*"]\nwrite = ["*"]\n'
    )
    (folder / "tokens.toml").chmod(0o600)
    return folder


@pytest.fixture
def object_store(
    page: str, level: str, stock: Path, request: pytest.FixtureRequest
) -> dict[str, str]:
    """The variables of an S3 server with the datasets that pages name, if this page names any."""
    if not any("s3://" in block.code for block in blocks_to_run(page, level)):
        return {}
    variables = {
        "AWS_ENDPOINT_URL": request.getfixturevalue("s3_server"),
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "id",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
    }
    monkeypatch = request.getfixturevalue("monkeypatch")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    create = urllib.request.Request(f"{variables['AWS_ENDPOINT_URL']}/lake", method="PUT")
    urllib.request.urlopen(create, timeout=30).close()
    trips = read(stock / "trips.arrow")
    for name in ("trips", "delays"):
        store = VersionStore(f"s3://lake/{name}")
        shard = store.write_shard("stock", "0.arrow", trips.schema, trips.to_batches())
        store.commit("stock", trips.schema, [shard], append=False)
    pq.write_table(trips, "lake/trips/0.parquet", filesystem=_open_store(variables))
    return variables


def _open_store(variables: dict[str, str]) -> fs.S3FileSystem:
    return fs.S3FileSystem(
        endpoint_override=variables["AWS_ENDPOINT_URL"],
        access_key=variables["AWS_ACCESS_KEY_ID"],
        secret_key=variables["AWS_SECRET_ACCESS_KEY"],
        region=variables["AWS_REGION"],
    )


@pytest.fixture
def issuer(
    page: str, level: str, tmp_path: Path
) -> Iterator[tuple[dict[str, str], dict[str, str]]]:
    """The issuer of tokens that this page names, if it names one."""
    if not any(f"https://{ISSUER}" in block.code for block in blocks_to_run(page, level)):
        yield {}, {}
        return
    with serve_keys(tmp_path) as (host, authority):
        yield {ISSUER: host}, {"SSL_CERT_FILE": str(authority)}


@pytest.fixture
def session(
    page: str,
    level: str,
    stock: Path,
    object_store: dict[str, str],
    issuer: Issuer,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[PageSession]:
    # The paths of sockets must be short.
    with tempfile.TemporaryDirectory(prefix="page-") as temporary:
        folder = Path(temporary)
        shutil.copytree(stock, folder, dirs_exist_ok=True)
        monkeypatch.chdir(folder)
        monkeypatch.setenv("SPLITARROW_TOKEN", TOKEN)
        code = "".join(block.code for block in blocks_to_run(page, level))
        for file in ("flights.arrow", "trips.arrow"):
            if not re.search(rf"(?:=|serve |flights\": \"){file}", code):
                (folder / file).unlink()  # `serve` names another file in its hints if this exists
        if page == DELTA_PAGE and level == "long":
            write_delta_versions(folder / "root" / "data" / "trips", 42)
        datasets = {name: folder / "data" / f"{name}.arrow" for name in ("flights", "trips")}
        hosts, variables = issuer
        variables |= {"HOME": temporary, **object_store}
        with PageSession(folder, datasets, variables, hosts) as session:
            write_certificates(folder, session.this_host)
            yield session


def write_delta_versions(folder: Path, versions: int) -> None:
    """Write a Delta table in the place of a folder."""
    shutil.rmtree(folder)
    for number in range(versions):
        write_deltalake(folder, pa.table({"fare": [float(number)]}), mode="append")


def write_certificates(folder: Path, host: str) -> None:
    """Write the certificates of a server and a client, and that of their authority."""
    authority = trustme.CA()
    for name in ("ca", "clients"):
        authority.cert_pem.write_to_path(folder / f"{name}.pem")
    for name in ("server", "client"):
        certificate = authority.issue_cert(host)
        certificate.cert_chain_pems[0].write_to_path(folder / f"{name}.pem")
        certificate.private_key_pem.write_to_path(folder / f"{name}-key.pem")


@pytest.mark.parametrize(("page", "level"), [*make_cases()])
def test_the_blocks_of_a_page_run(page: str, level: str, session: PageSession) -> None:
    package = level if level in _FRAMEWORKS else _PACKAGES.get(page)
    if package is not None and find_spec(package) is None:
        pytest.skip(f"the package {package} is not installed")
    for block in blocks_to_run(page, level):
        try:
            deferred = block.language == "python" and (package or _DEFERRED.search(block.code))
            (session.defer if deferred else session.run)(block)
        except BaseException as error:
            error.add_note(f"in the block at {block.place}")
            raise
    session.run_deferred(_CHECKS.get((page, level), ""))


def test_the_list_of_blocks_that_do_not_run_is_current() -> None:
    listed = {
        (page, start)
        for page, start in NOT_RUN
        if any(block.page == page and block.code.startswith(start) for block in BLOCKS)
    }
    assert listed == set(NOT_RUN)


def test_every_block_has_a_known_language() -> None:
    languages = {"console", "json", "pycon", "python", "toml"} | _ILLUSTRATIONS
    assert [block.place for block in BLOCKS if block.language not in languages] == []
