"""Fixtures of the tests over an emulated link."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from helpers.daemons import StartDaemon
from helpers.files import write_file
from network.link import SERVER, Link, LinkUnavailableError, MakeLink, contain
from splitarrow import testing
from splitarrow.testing import Daemon


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests, and keep those that measure from running beside each other."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.network)
            if item.path.name != "test_dead_peers.py":  # its tests mostly wait
                item.add_marker(pytest.mark.xdist_group("measurements"))


@pytest.fixture(scope="module")
def make_link() -> Iterator[MakeLink]:
    """Make links with the arguments of `Link`; they end with the module at the latest."""
    with ExitStack() as stack:

        def make(**settings: Any) -> Link:
            try:
                return stack.enter_context(Link(**settings))
            except LinkUnavailableError as reason:
                pytest.skip(str(reason))

        yield make


@pytest.fixture
def link(make_link: MakeLink) -> Iterator[Link]:
    """A link of 1 Gbit/s without delay, which tests change with `Link.set`."""
    link = make_link()
    yield link
    link.close()


@pytest.fixture
def serve(link: Link, daemon: StartDaemon, monkeypatch: pytest.MonkeyPatch) -> StartDaemon:
    """Start daemons in the server's namespace, with a control plane and a listener for tcp."""
    monkeypatch.setattr(testing, "_COMMAND", (*contain(), *testing._COMMAND))

    def start(datasets: Mapping[str, str | Path], **options: Any) -> Daemon:
        defaults = {"listen": [f"tcp://{SERVER}:0"], "control": f"grpc://{SERVER}:0"}
        with link.inside("server"):
            return daemon(datasets, **{**defaults, "insecure": True, **options})

    return start


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A file of 10 KB in one batch, which fits into the first packets of a connection."""
    return write_file(tmp_path / "small.arrow", pa.table({"n": range(1250)}))


@pytest.fixture(scope="session")
def random_numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of 32 MiB of random numbers in batches of 1 MiB."""
    values = np.random.default_rng(1).random(4 << 20)
    path = tmp_path_factory.mktemp("random") / "random.arrow"
    return write_file(path, pa.table({"x": pa.array(values)}), batch_rows=1 << 17)
