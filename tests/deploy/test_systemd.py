"""The systemd unit, and the configuration that it starts with."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import tomllib
from configparser import RawConfigParser
from pathlib import Path
from string import Template

import pytest
import trustme

from helpers.service_manager import COMMAND, DEPLOY, PATIENCE, Manager
from splitarrow.server.config import load_settings
from splitarrow.testing import Daemon

pytestmark = pytest.mark.slow

UNIT = DEPLOY / "systemd" / "splitarrow.service"
CONFIG = DEPLOY / "systemd" / "splitarrow.toml"
RELAY_UNIT = DEPLOY / "systemd" / "splitarrow-relay.service"
RELAY_CONFIG = DEPLOY / "systemd" / "relay.toml"
RELAY_ENVIRONMENT = DEPLOY / "systemd" / "relay.env"
TOKEN = "a-token-that-is-long-enough"


@pytest.fixture(scope="module")
def service() -> dict[str, str]:
    return read_service(UNIT)


@pytest.fixture(scope="module")
def relay() -> dict[str, str]:
    return read_service(RELAY_UNIT)


def read_service(path: Path) -> dict[str, str]:
    unit = RawConfigParser(strict=True, comment_prefixes=("#",))
    unit.optionxform = str  # pyright: ignore[reportAttributeAccessIssue]
    unit.read(path)
    assert unit.sections() == ["Unit", "Service", "Install"]
    return dict(unit["Service"])


def test_the_configuration_is_valid() -> None:
    settings = load_settings(CONFIG)
    assert set(settings.datasets) == {"flights", "trips"}


def test_the_daemon_has_time_to_drain(service: dict[str, str]) -> None:
    assert float(service["TimeoutStopSec"]) > load_settings(CONFIG).drain_seconds


def test_the_daemon_tells_its_state_and_gets_one_signal(service: dict[str, str]) -> None:
    wanted = {"Type": "notify", "NotifyAccess": "main", "KillSignal": "SIGTERM"}
    assert wanted.items() <= service.items()
    assert float(service["WatchdogSec"]) > 0
    # With the default, workers would get SIGTERM twice: from systemd, and from their parent.
    assert service["KillMode"] == "mixed"


def test_the_folders_are_those_that_the_unit_makes(service: dict[str, str]) -> None:
    settings = load_settings(CONFIG)
    assert settings.writable == Path("/var/lib", service["StateDirectory"])
    assert settings.ready_file is not None
    assert settings.ready_file.parent == Path("/run", service["RuntimeDirectory"])


def test_the_command_is_one_of_ours(service: dict[str, str]) -> None:
    program, *arguments = shlex.split(service["ExecStart"])
    assert Path(program).name == "splitarrow"
    assert arguments == ["serve", "--config", "/etc/splitarrow/splitarrow.toml"]
    done = subprocess.run([*COMMAND, *arguments, "--help"], capture_output=True, timeout=PATIENCE)
    assert done.returncode == 0


def test_a_reload_checks_the_configuration_first(service: dict[str, str]) -> None:
    check, hang_up = (shlex.split(command) for command in service["ExecReload"].split(" ; "))
    assert Path(check[0]) == Path(shlex.split(service["ExecStart"])[0])
    assert check[1:] == ["check-config", "/etc/splitarrow/splitarrow.toml"]
    assert hang_up == ["/bin/kill", "-HUP", "$MAINPID"]


def test_the_daemon_serves_with_the_configuration(
    service: dict[str, str], manager: Manager, data: Path, tmp_path: Path
) -> None:
    """Only paths and addresses are replaced by some that exist here."""
    etc, run, state = (tmp_path / name for name in ("etc", "run", "state"))
    for folder in (etc, run, state):
        folder.mkdir()
    certificate = trustme.CA().issue_cert("127.0.0.1")
    certificate.cert_chain_pems[0].write_to_path(etc / "server.pem")
    certificate.private_key_pem.write_to_path(etc / "server-key.pem")
    entry = f'[[tokens]]\nname = "somebody"\ntoken = "{TOKEN}"\n'
    (etc / "tokens.toml").write_text(entry + 'datasets = ["*"]\n')
    (etc / "tokens.toml").chmod(0o600)
    (data / "trips").mkdir()
    (data / "trips" / "one.arrow").write_bytes((data / "flights.arrow").read_bytes())
    places = {
        "/etc/splitarrow": etc,
        "/run/splitarrow": run,
        "/var/lib/splitarrow": state,
        "/srv/splitarrow": data,
    }
    text = CONFIG.read_text()
    for place, here in places.items():
        text = text.replace(place, str(here))
    text = re.sub(r"0\.0\.0\.0:\d+", "127.0.0.1:0", text)
    (etc / "splitarrow.toml").write_text(text)
    assert tomllib.loads(text).keys() == tomllib.loads(CONFIG.read_text()).keys()

    arguments = shlex.split(service["ExecStart"].replace("/etc/splitarrow", str(etc)))[1:]
    process = manager.start(*arguments)
    manager.wait_for("READY=1")
    ready = json.loads((run / "ready.json").read_text())
    assert ready["control"].startswith("grpc+tls://127.0.0.1:")
    process.send_signal(signal.SIGHUP)
    manager.wait_for("READY=1")
    process.send_signal(signal.SIGTERM)
    _, log = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, log


def test_the_relay_is_confined_as_the_daemon_is(
    service: dict[str, str], relay: dict[str, str]
) -> None:
    own = ("ExecStart", "ExecReload", "EnvironmentFile", "RuntimeDirectory")
    folders = ("StateDirectory", "StateDirectoryMode", "CacheDirectory", "CacheDirectoryMode")
    ours, theirs = (
        {name: value for name, value in each.items() if name not in (*own, *folders)}
        for each in (relay, service)
    )
    assert ours == theirs
    settings = load_settings(RELAY_CONFIG)
    assert settings.ready_file is not None
    assert settings.ready_file.parent == Path("/run", relay["RuntimeDirectory"])
    assert f"--cache /var/cache/{relay['CacheDirectory']} " in relay["ExecStart"]
    assert float(relay["TimeoutStopSec"]) > settings.drain_seconds


def test_the_relay_serves_with_the_configuration(
    relay: dict[str, str], manager: Manager, data: Path, tmp_path: Path
) -> None:
    """Only paths, addresses and the upstream are replaced by some that exist here."""
    run, config = tmp_path / "run", tmp_path / "relay.toml"
    run.mkdir()
    text = RELAY_CONFIG.read_text().replace("/run/splitarrow-relay", str(run))
    config.write_text(re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:0", text))
    lines = [line for line in RELAY_ENVIRONMENT.read_text().splitlines() if line[:1] != "#"]
    variables = dict(line.split("=", 1) for line in lines)
    assert relay["EnvironmentFile"] == f"/etc/splitarrow/{RELAY_ENVIRONMENT.name}"
    with Daemon({"x": data / "flights.arrow"}, control="grpc://127.0.0.1:0") as upstream:
        variables |= {"UPSTREAM": str(upstream.control_uri), "SPLITARROW_TLS_CA": ""}
        command = Template(relay["ExecStart"]).substitute(variables)
        command = command.replace("/var/cache/splitarrow-relay", str(tmp_path / "cache"))
        command = command.replace("/etc/splitarrow/relay.toml", str(config))
        process = manager.start(*shlex.split(command)[1:], environment=variables)
        manager.wait_for("READY=1")
        assert json.loads((run / "ready.json").read_text())["datasets"].keys() == {"x"}
        assert relay["ExecReload"] == "/bin/kill -HUP $MAINPID"
        process.send_signal(signal.SIGHUP)
        manager.wait_for("READY=1")
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, log
