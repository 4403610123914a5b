"""Which transport two hosts use, and what it makes of the link."""

from __future__ import annotations

from pathlib import Path

from helpers.daemons import StartDaemon
from network.link import SERVER, Link


def test_ucx_works_between_two_namespaces_of_a_host(
    link: Link, serve: StartDaemon, small: Path
) -> None:
    """They share no memory, as two containers do not."""
    server = serve({"small": small}, listen=[f"ucx://{SERVER}:0"], control=None)
    python = link.python()
    assert python.value(f"splitarrow.open('{server.uri('small')}').read_all().num_rows") == 1250


def test_the_transport_that_auto_takes_is_not_much_slower_than_tcp(
    link: Link, serve: StartDaemon, random_numbers: Path
) -> None:
    server = serve({"numbers": random_numbers}, listen=[f"ucx://{SERVER}:0", f"tcp://{SERVER}:0"])
    python = link.python()
    link.set(delay_ms=20, rate_mbit=200)
    seconds: dict[str, list[float]] = {"auto": [], "tcp": []}
    python.value(f"client = splitarrow.connect('{server.control_uri}')\n0")
    for _ in range(3):
        for transport, taken in seconds.items():
            code = f"client.read('numbers', transport='{transport}', limit=1 << 21).read_all()"
            outcome = python(f"{code}.num_rows", 120)
            assert (outcome.value, outcome.message) == (1 << 21, "")
            taken.append(outcome.seconds)
    assert link.stats().to_client.payload > 6 * 8 * (1 << 21), "the data crosses the link"
    assert min(seconds["tcp"]) >= 0.8 * min(seconds["auto"])
