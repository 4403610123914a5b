"""A real Prometheus scrapes daemons under load: the dashboard's queries have data."""

from __future__ import annotations

import math
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import splitarrow
from helpers.monitoring import dashboard, queries, rules
from helpers.prometheus import Prometheus
from helpers.publication import numbers, publish
from helpers.service_manager import COMMAND, DEPLOY
from helpers.waiting import wait_until
from splitarrow.errors import SplitArrowError
from splitarrow.publication.version_store import VersionStore
from splitarrow.testing import Daemon

yaml: Any = pytest.importorskip("yaml")

pytestmark = pytest.mark.slow


@pytest.fixture
def token_file(node: Path) -> Path:
    return node / "etc" / "splitarrow" / "tokens" / "tokens.toml"


@pytest.fixture
def daemons(node: Path, token_file: Path) -> Iterator[list[Daemon]]:
    """A daemon with a control plane, shared memory and TLS, one with two workers, and a relay."""
    publish(VersionStore(node / "published"), "one", numbers(0), numbers(5))
    pq.write_table(pa.table({"x": range(10_000)}), node / "data" / "numbers.parquet")
    datasets = {
        "flights": node / "data" / "flights.arrow",
        "numbers": node / "data" / "numbers.parquet",
        "published": node / "published",
    }
    settings: dict[str, Any] = {"http": "http://127.0.0.1:0", "token_file": token_file}
    with (
        Daemon(
            datasets,
            listen=["tcp://127.0.0.1:0", f"shm://{node}/run/splitarrow/data.sock"],
            control="grpc+tls://127.0.0.1:0",
            tls_cert=node / "server.pem",
            **settings,
        ) as one,
        Daemon(datasets, listen=["tcp://127.0.0.1:0"], workers=2, **settings) as two,
        start_relay(node, one, settings) as relay,
    ):
        yield [one, two, relay]


def start_relay(node: Path, upstream: Daemon, settings: dict[str, Any]) -> Daemon:
    """Return a relay of a daemon. The caller starts it."""
    token = (node / "root.token").read_text().strip()
    arguments = ["--cache", str(node / "cache"), "--tls-ca", str(node / "ca.pem")]
    return Daemon(
        upstream=upstream.control_uri,
        listen=["tcp://127.0.0.1:0"],
        control="grpc+tls://127.0.0.1:0",
        tls_cert=node / "server.pem",
        arguments=[*arguments, "--token", token],
        **settings,
    )


@pytest.fixture
def prometheus(node: Path, daemons: list[Daemon]) -> Iterator[Prometheus]:
    """Prometheus with the configuration of deploy/, but for the targets and the intervals."""
    folder = DEPLOY / "prometheus"
    configuration = yaml.safe_load((folder / "prometheus.yaml").read_text())
    configuration["global"] = {"scrape_interval": "500ms", "evaluation_interval": "500ms"}
    configuration["rule_files"] = [str(folder / name) for name in configuration["rule_files"]]
    (job,) = configuration["scrape_configs"]
    job["static_configs"] = [
        {"targets": [daemon.http_uri.removeprefix("http://").rstrip("/") for daemon in daemons]}
    ]
    job["authorization"] = {"credentials_file": str(node / "root.token")}
    path = node / "prometheus.yaml"
    path.write_text(yaml.safe_dump(configuration))
    prometheus = Prometheus(path, node)
    yield prometheus
    prometheus.close()


def load(node: Path, daemon: Daemon) -> None:
    """Read over all transports, be refused once, and reload the configuration."""
    tls = splitarrow.TlsOptions(ca_file=node / "ca.pem")
    token = (node / "root.token").read_text().strip()
    with splitarrow.connect(daemon.control_uri or "", token, tls=tls) as client:
        for transport in ("tcp", "shm", "flight"):
            for name in ("flights", "numbers", "published"):
                assert client.read(name, transport=transport).read_all().num_rows
        with pytest.raises(SplitArrowError):
            client.read("absent").read_all()
        client.act("reload")


def load_relay(node: Path, relay: Daemon) -> None:
    """Read a published dataset through a relay."""
    tls = splitarrow.TlsOptions(ca_file=node / "ca.pem")
    token = (node / "root.token").read_text().strip()
    with splitarrow.connect(relay.control_uri or "", token, tls=tls) as client:
        assert client.read("published").read_all().num_rows


def has_data(prometheus: Prometheus, expression: str) -> bool:
    """Return whether an expression has a value that is a number."""
    values = [float(series["value"][1]) for series in prometheus.query(expression)]
    return any(not math.isnan(value) for value in values)


def test_the_queries_of_the_dashboard_have_data(
    node: Path, daemons: list[Daemon], prometheus: Prometheus
) -> None:
    wait_until(lambda: len(prometheus.query("splitarrow_ready == 1")) == 3, "three targets")
    missing = [*queries(), *variables()]

    def everything_has_data() -> bool:
        load(node, daemons[0])
        load_relay(node, daemons[2])
        missing[:] = [each for each in missing if not has_data(prometheus, each)]
        return not missing

    try:
        wait_until(everything_has_data, "data")
    except AssertionError:
        pytest.fail("no data for:\n" + "\n".join(missing))
    assert {
        series["metric"]["transport"]
        for series in prometheus.query("splitarrow_streams_started_total")
    } >= {"tcp", "shm", "flight"}
    assert [one["value"][1] for one in prometheus.query("sum(splitarrow_workers)")] == ["4"]
    no_secret_in(prometheus, node)


def variables() -> list[str]:
    """Return the selectors of which the dashboard's variables take the values of a label."""
    found = [
        re.fullmatch(r"label_values\((.*), \w+\)", variable["query"]["query"])
        for variable in dashboard()["templating"]["list"]
        if variable["type"] == "query"
    ]
    assert all(found)
    return [match[1].replace("$instance", ".*") for match in found if match is not None]


def no_secret_in(prometheus: Prometheus, node: Path) -> None:
    """Check that no label of any series contains the token."""
    token = (node / "root.token").read_text().strip()
    assert token not in str(prometheus.get("series", **{"match[]": '{__name__=~".+"}'}))


def loaded(prometheus: Prometheus) -> list[dict[str, Any]]:
    """Return the alerts that Prometheus evaluates."""
    (group,) = prometheus.get("rules")["groups"]
    return group["rules"]


def test_alerts_are_quiet_until_a_daemon_fails_to_reload(
    node: Path, daemons: list[Daemon], prometheus: Prometheus, token_file: Path
) -> None:
    wait_until(lambda: len(prometheus.query("splitarrow_ready == 1")) == 3, "three targets")
    (group,) = prometheus.get("rules")["groups"]
    wait_until(
        lambda: all(
            rule["health"] == "ok" for rule in prometheus.get("rules")["groups"][0]["rules"]
        ),
        "an evaluation",
    )
    assert [rule["name"] for rule in group["rules"]] == [rule["alert"] for rule in rules()]
    assert prometheus.get("alerts")["alerts"] == []
    token = (node / "root.token").read_text().strip()
    token_file.write_text("no token file")
    reload = [*COMMAND, "reload", daemons[0].control_uri or "", "--token", token]
    done = subprocess.run([*reload, "--tls-ca", node / "ca.pem"], capture_output=True, text=True)
    assert done.returncode == 1
    assert "tokens.toml is not TOML" in done.stderr
    wait_until(
        lambda: (
            [one["labels"]["alertname"] for one in prometheus.get("alerts")["alerts"]]
            == ["SplitArrowReloadFailed"]
        ),
        "an alert",
    )
