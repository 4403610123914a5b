"""Reloads under load, of good and of broken configurations."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

import pytest

import splitarrow
from helpers.batteries import Battery, anonymous_kib, descriptors
from helpers.readers import ReaderPool, run_together, source
from helpers.waiting import wait_until
from splitarrow.testing import Daemon

pytestmark = [pytest.mark.long, pytest.mark.timeout(7200)]

TRANSPORTS = ["tcp", "shm", "ucx", "flight"]
BROKEN = [
    "log_levl = 'info'\n",
    "log_level = 'loud'\n",
    "drain_seconds = [\n",
    "token_file = '/nowhere/tokens.toml'\n",
    "[datasets]\nlost = '/nowhere/lost.arrow'\n",
]


def test_reloads(battery: Battery, server, readers: ReaderPool, numbers, tmp_path: Path) -> None:
    """No reload drops a stream, and a broken configuration leaves the old one in force."""
    path, checksum = numbers
    config = tmp_path / "splitarrow.toml"
    config.write_text("")
    running = server({"numbers": path}, config=config)
    until = tmp_path / "until"
    loops = [
        readers.start(
            "repeat",
            **source(running, "numbers", transport, stall_timeout=120),
            until=str(until),
            pause=0.001,
            pause_every=16,
        )
        for transport in TRANSPORTS
    ]
    for loop in loops:
        loop.wait("reading")
    reloads = battery.count(500, 10)
    every = max(2, reloads // 20)
    broken, before = 0, (0, 0)
    served = ["numbers"]
    with splitarrow.connect(running.control_uri) as client:
        for number in range(1, reloads + 1):
            is_broken = not number % every
            if is_broken:
                config.write_text(BROKEN[broken % len(BROKEN)])
                broken += 1
            else:
                names = [f"more{n}" for n in range(number % 3)]
                served = [*names, "numbers"]
                config.write_text(
                    f"log_level = '{('info', 'debug')[number % 2]}'\n[datasets]\n"
                    + "".join(f"{name} = '{path}'\n" for name in names)
                )
            logged = running.log_file.stat().st_size
            running.send_signal(signal.SIGHUP)
            if is_broken:
                wait_for_log(running, logged, b"cannot reload")
            # Each good configuration serves other datasets than the one before.
            wait_until(
                lambda now=served: sorted(info.name for info in client.datasets()) == now,
                f"reload {number}",
            )
            if number == reloads // 5:
                before = descriptors(running.pid), anonymous_kib(running.pid)
        until.touch()
        results = run_together(loops, 120)
        wait_until(lambda: not client.status()["stats"]["connections"], "the end of streams")
    outcomes = sum((Counter(result["outcomes"]) for result in results), Counter[str]())
    after = descriptors(running.pid), anonymous_kib(running.pid)
    battery.record(
        reloads=reloads,
        broken=broken,
        outcomes=outcomes,
        more_descriptors=after[0] - before[0],
        growth_kib=after[1] - before[1],
    )
    assert set(outcomes) == {"complete"}
    assert {c for result in results for c in result["checksums"]} == {checksum}
    assert after[0] <= before[0]
    assert after[1] - before[1] < 16 << 10


def wait_for_log(running: Daemon, begin: int, text: bytes) -> None:
    """Wait until the log has a text after the offset `begin`."""

    def is_logged() -> bool:
        with running.log_file.open("rb") as file:
            file.seek(begin)
            return text in file.read()

    wait_until(is_logged, text.decode())
