"""What crosses the link for jobs and relays, in the study of relays at a small size."""

from __future__ import annotations

import pytest

from splitarrow.benchmarks.studies import relay_link


def test_each_byte_crosses_the_link_about_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert relay_link.main(["--quick", "--only", "jobs", "peers", "first-batch", "warm"]) == 0
    found = dict(
        line.split(": ", 1) for line in capsys.readouterr().err.splitlines() if ": {" in line
    )
    for part in ("jobs", "peers"):
        sent = float(found[part].partition("'sent': ")[2].partition(",")[0])
        assert 1 <= sent < 1.1, found
    assert {"first-batch", "warm"} <= found.keys()
