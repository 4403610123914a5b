"""A service manager that listens, and the files of a node of Kubernetes."""

from __future__ import annotations

import secrets
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from helpers.files import write_file
from helpers.pki import Pki
from helpers.service_manager import COMMAND, Manager


@pytest.fixture
def manager() -> Iterator[Manager]:
    manager = Manager()
    yield manager
    manager.close()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with a dataset."""
    folder = tmp_path / "data"
    folder.mkdir()
    table = pa.table({"number": range(1000)})
    with (
        pa.OSFile(str(folder / "flights.arrow"), "wb") as file,
        pa.ipc.new_file(file, table.schema) as writer,
    ):
        writer.write_table(table)
    return folder


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """The root of a node, with the files that the chart mounts."""
    pki = Pki(tmp_path)
    mounted = tmp_path / "etc" / "splitarrow"
    for folder in ("tokens", "tls", "ticket-keys"):
        (mounted / folder).mkdir(parents=True)
    shutil.copy(pki.path("server-cert"), mounted / "tls" / "tls.crt")
    shutil.copy(pki.path("server-key"), mounted / "tls" / "tls.key")
    shutil.copy(pki.path("ca"), mounted / "tls" / "ca.crt")
    (mounted / "ticket-keys" / "ticket.keys").write_text(f"{secrets.token_hex(32)}\n")
    (mounted / "ticket-keys" / "ticket.keys").chmod(0o600)
    token = [*COMMAND, "token", "new", str(mounted / "tokens" / "tokens.toml"), "root"]
    with (tmp_path / "root.token").open("wb") as file:
        subprocess.run([*token, "--datasets", "*", "--write", "*"], check=True, stdout=file)
    (tmp_path / "run" / "splitarrow").mkdir(parents=True)
    for folder in ("data/trips", "uploads"):
        (tmp_path / folder).mkdir(parents=True)
    for path in ("flights.arrow", "trips/1.arrow"):
        write_file(tmp_path / "data" / path, pa.table({"x": [1, 2]}))
    return tmp_path
