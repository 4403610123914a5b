"""What clients and daemons do when the other side vanishes, or was never there."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.daemons import StartDaemon
from helpers.waiting import wait_until
from network.link import DEAD, DEAD_V6, SERVER, Link

STALL_TIMEOUT = 3.0
BOUND = STALL_TIMEOUT + 5
"""The longest time until a read from a dead peer ends, in seconds."""
NOTICE = 5.0
"""The longest time until a read uses another connection than the dead one."""
SLACK = 1.5
"""What a busy machine may add."""
GIVE_UP = 25.0
"""The time after which a test does not wait any longer."""

READ = "client.read('small').read_all().num_rows"


# --- connecting --------------------------------------------------------------------------------


def test_connect_succeeds_over_a_very_long_link(
    link: Link, serve: StartDaemon, small: Path
) -> None:
    server = serve({"small": small})
    python = link.python()
    link.set(delay_ms=800)
    code = f"client = splitarrow.connect('{server.control_uri}')\n{READ}"
    assert python.value(code) == 1250


def test_connect_succeeds_with_loss(link: Link, serve: StartDaemon, small: Path) -> None:
    server = serve({"small": small})
    python = link.python()
    link.set(delay_ms=20, loss=0.05)
    link.seed(5)
    code = f"""
from concurrent.futures import ThreadPoolExecutor
def connect(_):
    try:
        with splitarrow.connect('{server.control_uri}'):
            return None
    except Exception as error:
        return str(error)
with ThreadPoolExecutor(5) as pool:
    results = list(pool.map(connect, range(30)))
[each for each in results if each is not None]
"""
    assert python.value(code) == []


@pytest.mark.parametrize("dead", [DEAD, DEAD_V6])
@pytest.mark.parametrize("scheme", ["tcp", "grpc"])
def test_a_name_whose_first_address_is_dead(
    link: Link, serve: StartDaemon, small: Path, scheme: str, dead: str
) -> None:
    server = serve({"small": small})
    uri = server.control_uri if scheme == "grpc" else server.uri("small", scheme)
    python = link.python(hosts={"several.test": [dead, SERVER]})
    code = f"splitarrow.open('{uri.replace(SERVER, 'several.test')}').read_all().num_rows"
    if scheme == "grpc":
        code = f"splitarrow.connect('{uri.replace(SERVER, 'several.test')}').datasets()[0].rows"
    outcome = python(code)
    assert outcome.message == ""
    assert outcome.value == 1250
    assert outcome.seconds < 1 + SLACK


# --- connections that died while they were idle ------------------------------------------------


def test_a_client_survives_a_nat_that_forgets_its_connections(
    link: Link, serve: StartDaemon, small: Path
) -> None:
    server = serve({"small": small})
    python = link.python()
    link.set(delay_ms=20)
    assert python.value(f"client = splitarrow.connect('{server.control_uri}')\n{READ}") == 1250
    for _ in range(2):
        link.forget_connections()
        outcome = python(READ, GIVE_UP)
        assert (outcome.value, outcome.message) == (1250, "")
        assert outcome.seconds < NOTICE + SLACK


def test_kept_data_connections_survive_a_nat_that_forgets_them(
    link: Link, serve: StartDaemon, small: Path
) -> None:
    server = serve({"small": small})
    python = link.python()
    code = f"splitarrow.open('{server.uri('small')}').read_all().num_rows"
    assert python.value(code) == 1250
    link.forget_connections()
    outcome = python(code, GIVE_UP)
    assert (outcome.value, outcome.message) == (1250, "")
    assert outcome.seconds < NOTICE + SLACK


# --- black holes -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("transport", "hole"),
    [("tcp", "both"), ("tcp", "to client"), ("flight", "both"), ("ucx", "both")],
)
def test_a_read_through_a_black_hole_ends_in_time(
    link: Link, serve: StartDaemon, random_numbers: Path, transport: str, hole: str
) -> None:
    listen = [f"{transport.replace('flight', 'tcp')}://{SERVER}:0"]
    environment = {"UCX_TLS": "tcp"}
    server = serve({"numbers": random_numbers}, listen=listen, environment=environment)
    python = link.python(environment=environment)
    link.set(rate_mbit=50)
    python.value(
        f"client = splitarrow.connect('{server.control_uri}')\n"
        f"stream = client.read('numbers', transport='{transport}', stall_timeout={STALL_TIMEOUT},"
        " prefetch_bytes=0)\n"
        "next(stream).num_rows"
    )
    link.set(hole=hole)
    outcome = python("stream.read_all().num_rows", GIVE_UP)
    assert outcome.error in ("StallError", "ConnectionLostError", "ConnectError")
    assert outcome.seconds < BOUND + SLACK


def test_a_read_that_begins_in_a_black_hole_ends_in_time(
    link: Link, serve: StartDaemon, small: Path
) -> None:
    server = serve({"small": small})
    python = link.python()
    python.value(f"client = splitarrow.connect('{server.control_uri}')\n{READ}")
    link.set(hole="both")
    outcome = python(
        f"client.read('small', stall_timeout={STALL_TIMEOUT}).read_all().num_rows", GIVE_UP
    )
    assert outcome.error in ("StallError", "ConnectionLostError", "ConnectError")
    assert outcome.seconds < BOUND + SLACK
    assert server.control_uri.partition("://")[2] in outcome.message, "it names the peer"


def test_a_cluster_reads_on_without_a_dead_daemon(
    link: Link, serve: StartDaemon, small: Path
) -> None:
    other = "10.77.0.4"
    link.run("server", ["ip", "addr", "add", f"{other}/24", "dev", "link0"])
    first = serve({"small": small})
    second = serve({"small": small}, listen=[f"tcp://{other}:0"], control=f"grpc://{other}:0")
    python = link.python()
    uris = [first.control_uri, second.control_uri]
    python.value(f"client = splitarrow.connect({uris})\n{READ}")
    usual = min(python(READ).seconds for _ in range(3))
    link.run("server", ["ip", "addr", "del", f"{other}/24", "dev", "link0"])
    noticing, *later = (python(READ, GIVE_UP) for _ in range(3))
    assert [each.value for each in (noticing, *later)] == [1250] * 3
    assert noticing.seconds < 30 + 5 + SLACK  # the default of stall_timeout
    assert max(each.seconds for each in later) < usual + 1 + SLACK


# --- readers that have vanished ----------------------------------------------------------------


def test_a_daemon_frees_the_streams_of_vanished_readers_within_a_minute(
    link: Link, serve: StartDaemon, random_numbers: Path
) -> None:
    listen = [f"tcp://{SERVER}:0", f"ucx://{SERVER}:0"]
    environment = {"UCX_TLS": "tcp"}
    server = serve({"numbers": random_numbers}, listen=listen, environment=environment)
    reader = link.python(environment=environment)
    reader.value(
        f"client = splitarrow.connect('{server.control_uri}')\n"
        "streams = [client.read('numbers', transport=each, prefetch_bytes=0)"
        " for each in ('tcp', 'ucx', 'flight')]\n"
        "[next(stream).num_rows for stream in streams]"
    )

    operator = link.python("server")
    operator.value(f"client = splitarrow.connect('{server.control_uri}')\n1")

    def open_streams() -> int:
        return operator.value("len(client.status()['streams'])")

    assert open_streams() == 3
    link.set(hole="both")
    wait_until(lambda: open_streams() == 0, "the end of all streams", seconds=60)
