"""The examples of docs/guide/pytorch.md run, one after the other, and the model learns."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from helpers.daemons import StartDaemon
from helpers.package import ROOT
from helpers.waiting import wait_until
from splitarrow.client.connect import connect

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
]
PAGE = (ROOT / "docs" / "guide" / "pytorch.md").read_text()
FENCE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
ROWS = 200_000


def test_the_examples_run_and_the_loss_falls(vega_test_data: Path, daemon: StartDaemon) -> None:
    server = daemon(
        {"flights": vega_test_data / "flights-200k.arrow"}, control="grpc://127.0.0.1:0"
    )
    names: dict[str, Any] = {}
    first, plain, stateful = (
        code.replace("grpc://node1:8815", str(server.control_uri)) for code in FENCE.findall(PAGE)
    )
    exec(first, names)
    losses = names["losses"]
    assert len(losses) == 2 * -(-ROWS // 4096)
    assert mean(losses[-10:]) < 0.9 * mean(losses[:3])
    exec(plain, names)
    assert sum(len(batch["delay"]) for batch in names["rest"]) == ROWS - 20 * 4096
    exec(stateful, names)
    assert sum(len(batch["delay"]) for batch in names["rest"]) == ROWS - 10 * 4096
    names.clear()
    with connect(str(server.control_uri)) as client:
        wait_until(lambda: client.status()["stats"]["leases"] == 0)
