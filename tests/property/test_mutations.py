"""Damaged inputs never crash, hang or eat memory: each parser reads or refuses them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.message_mutations import KINDS
from helpers.mutations import PARSERS
from helpers.vortex_mutations import KINDS as VORTEX_KINDS

TESTS = Path(__file__).resolve().parents[1]
SHORT = 1500
LONG = 1_000_000
REFUSED = {
    "stream": {"ProtocolError", "InvalidDataError", "LimitError", "PrefaceError"},
    "schema": {"ProtocolError", "InvalidDataError"},
    "facts": {"ProtocolError"},
    "messages": {"ProtocolError"},
    "bodies": {"ProtocolError"},
    "uri": {"UriError"},
    "ticket": {"InvalidRequestError"},
    "checker": {"ProtocolError", "InvalidDataError", "LimitError"},
    "vortex header": {"ProtocolError", "LimitError"},
    "vortex dtype": {"InvalidDataError"},
    "vortex array": {"InvalidDataError", "LimitError"},
    "vortex lz4": {"InvalidDataError", "LimitError"},
    "vortex file": {"InvalidDataError"},
    "vortex stream": {"ProtocolError", "InvalidDataError", "LimitError"},
}
COUNTS = {
    "stream": 2 * SHORT,
    "checker": 4_000 * len(KINDS),
    **{f"vortex {kind}": 4_000 for kind in VORTEX_KINDS},
}
"""The numbers of inputs where they are not `SHORT`: 4,000 of each kind of message."""


def run_battery(parser: str, count: int, seed: int, place: Path) -> dict[str, int]:
    """Run the battery in a process of its own; return how often each outcome was seen."""
    place.write_bytes(bytes(8))
    command = [sys.executable, "-W", "error", "-m", "helpers.mutations", parser]
    command += ["--seed", str(seed), "--count", str(count), "--place", str(place)]
    done = subprocess.run(command, cwd=TESTS, capture_output=True, text=True, timeout=10 + count)
    if done.returncode:
        number = int.from_bytes(place.read_bytes(), "little")
        how = f"exit status {done.returncode}"
        if done.returncode < 0:
            how = signal.Signals(-done.returncode).name
        pytest.fail(f"{parser}: {how} at input {number} of seed {seed}\n{done.stderr}")
    return json.loads(done.stdout)["outcomes"]


def check(parser: str, count: int, seed: int, place: Path) -> None:
    outcomes = run_battery(parser, count, seed, place)
    assert sum(outcomes.values()) == count
    assert outcomes["read"] < count, "nothing was damaged"
    assert outcomes["read"] > count // 100, "only rubbish was tried"
    assert REFUSED[parser] <= outcomes.keys()


@pytest.mark.parametrize("parser", PARSERS)
def test_damaged_inputs_are_read_or_refused(parser: str, tmp_path: Path) -> None:
    check(parser, COUNTS.get(parser, SHORT), 1, tmp_path / "place")


@pytest.mark.long
@pytest.mark.parametrize("parser", PARSERS)
def test_a_million_damaged_inputs_are_read_or_refused(parser: str, tmp_path: Path) -> None:
    check(parser, LONG, 2, tmp_path / "place")


def test_the_battery_notices_a_crash_and_says_where(tmp_path: Path) -> None:
    """A battery that could not fail would prove nothing."""
    place = tmp_path / "place"
    place.write_bytes(bytes(8))
    script = """if True:
        import os, signal, sys
        from helpers import mutations
        def crash(rng, seen=[]):
            seen.append(1)
            if len(seen) == 5:
                os.kill(os.getpid(), signal.SIGSEGV)
        mutations.PARSERS["uri"] = (lambda: crash, mutations.UriError)
        sys.argv[1:] = ["uri", "--place", sys.argv[1]]
        mutations.main()
    """
    done = subprocess.run([sys.executable, "-c", script, str(place)], cwd=TESTS, timeout=60)
    assert done.returncode == -signal.SIGSEGV
    assert int.from_bytes(place.read_bytes(), "little") == 4
