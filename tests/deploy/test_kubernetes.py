"""The chart of Helm and the plain manifests: Kubernetes accepts them, and they fit the daemon."""

from __future__ import annotations

import json
import re
import subprocess
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from helpers.service_manager import COMMAND, DEPLOY, PATIENCE, Manager
from splitarrow.server.config.advertised import list_pairs, parse_advertised
from splitarrow.testing import Daemon

yaml: Any = pytest.importorskip("yaml")

pytestmark = pytest.mark.slow

CHART = DEPLOY / "helm" / "splitarrow"
MANIFESTS = DEPLOY / "kubernetes" / "splitarrow.yaml"
VERSIONS = ("1.25", "1.30", "1.35")
"""Of Kubernetes."""
_SEVERITY_WARNING = 2
_OPERATOR = ("monitoring.coreos.com/", "gateway.networking.k8s.io/")
VALUES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "everything": {
        "datasets": {"flights": "/data/flights.arrow", "trips/2026": "/data/trips"},
        "config": "max_connections = 100\n",
        "uploads": {"hostPath": "/srv/uploads"},
        "tls": {"clientCa": True},
        "ticketKeys": {"secretName": "keys"},
        "sharedMemory": {"users": [1000, 1001]},
        "advertise": "nodeName",
        "hostNetwork": True,
        "serviceMonitor": {
            "enabled": True,
            "tokenSecret": {"name": "t"},
            "serverName": "n",
            "certSecretName": "c",
        },
        "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "tolerations": [{"operator": "Exists"}],
        "podAnnotations": {"a": "b"},
        "extraEnv": [{"name": "AWS_REGION", "value": "eu-central-1"}],
    },
    "nothing": {
        "insecure": True,
        "tokens": {"secretName": ""},
        "tls": {"secretName": ""},
        "data": {"hostPath": ""},
        "sharedMemory": {"enabled": False},
        "podDisruptionBudget": {"enabled": False},
        "serviceAccount": {"create": False},
        "serviceMonitor": {"enabled": True},
        "networkPolicy": {
            "readers": [{"podSelector": {"matchLabels": {"role": "trainer"}}}],
            "monitoring": [],
            "egress": [{"ports": [{"port": 53, "protocol": "UDP"}]}],
        },
    },
    "relay": {
        "relay": {
            "upstream": "grpc+tls://storage1:8815",
            "args": ["--prefetch-bytes", "8GiB"],
            "tokenSecret": {"name": "upstream-token"},
            "caSecret": {"name": "upstream-ca"},
        },
    },
    "relay without a folder": {
        "relay": {"upstream": "grpc://storage1,storage2", "cacheHostPath": ""},
        "sharedMemory": {"enabled": False},
    },
    "node ports": {
        "external": {"type": "NodePort", "podNetworks": ["10.244.0.0/16"]},
        "datasets": {"flights": "/data/flights.arrow"},
    },
    "load balancer": {
        "external": {
            "type": "LoadBalancer",
            "host": "data.example.org",
            "annotations": {"service.beta.kubernetes.io/aws-load-balancer-type": "nlb"},
        },
    },
    "ingress": {
        "ingress": {"enabled": True, "host": "data.example.org", "tlsSecretName": "data"},
        "datasets": {"flights": "/data/flights.arrow"},
    },
    "gateway": {
        "gateway": {"enabled": True, "host": "data.example.org", "parentRefs": [{"name": "g"}]},
        "tls": {"secretName": ""},
    },
}
MONITORED = {"serviceMonitor": {"enabled": True, "serverName": "n", "tokenSecret": {"name": "t"}}}


@pytest.fixture(scope="module")
def helm() -> Any:
    return pytest.importorskip("helm_python")


def render(helm: Any, values: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the objects that the chart describes."""
    with helm.Chart.load(CHART) as chart:
        chart.validate_schema(values)
        files = chart.render(values, name="splitarrow", namespace="splitarrow")
    return [
        document
        for name, text in files.items()
        if name.endswith(".yaml")
        for document in yaml.safe_load_all(text)
        if document
    ]


def select(objects: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (found,) = [each for each in objects if each["kind"] == kind]
    return found


def plain() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(MANIFESTS.read_text()))


def settings(objects: list[dict[str, Any]]) -> str:
    return select(objects, "ConfigMap")["data"]["splitarrow.toml"]


def pod(objects: list[dict[str, Any]]) -> dict[str, Any]:
    return select(objects, "DaemonSet")["spec"]["template"]["spec"]


def container(objects: list[dict[str, Any]]) -> dict[str, Any]:
    (found,) = pod(objects)["containers"]
    return found


def test_helm_lint(helm: Any) -> None:
    for values in VALUES.values():
        report = helm.lint(CHART, values, strict=True)
        serious = [each for each in report["messages"] if each["severity"] >= _SEVERITY_WARNING]
        assert (report["errors"], serious) == ([], [])


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"ports": {"data": 99_999}}, "maximum"),
        ({"sharedMemory": {"hostpath": "/run"}}, "additional properties 'hostpath'"),
        ({"datasets": {"a": 1}}, "got number, want string"),
        ({"podDisruptionBudget": {"minAvailable": "50%"}}, "got string, want integer"),
        ({"tokens": {"secretName": ""}}, "set tokens.secretName, or insecure: true"),
        (
            {"serviceMonitor": {"enabled": True, "serverName": "n"}},
            "set serviceMonitor.tokenSecret.name",
        ),
        (
            {"serviceMonitor": {"enabled": True, "tokenSecret": {"name": "t"}}},
            "set serviceMonitor.serverName",
        ),
        ({**MONITORED, "tls": {"clientCa": True}}, "set serviceMonitor.certSecretName"),
        ({**MONITORED, "tls": {"secretName": ""}}, "send its token unencrypted"),
        ({"external": {"type": "ExternalName"}}, "value must be one of"),
        ({"external": {"type": "LoadBalancer"}}, "set external.host"),
        ({"external": {"nodePorts": {"http": 1}}}, "additional properties 'http'"),
        ({"ingress": {"enabled": True}}, "set the host of the ingress or gateway"),
        ({"ingress": {"annotations": {}}}, "additional properties 'annotations'"),
        ({"gateway": {"enabled": True, "host": "h"}}, "set gateway.parentRefs"),
        ({"networkPolicy": {"from": []}}, "additional properties 'from'"),
        ({"relay": {"upstream": "storage1:8815"}}, "does not match pattern"),
        ({**VALUES["relay"], "datasets": {"a": "/data/a"}}, "a relay serves no datasets"),
    ],
)
def test_wrong_values_are_refused(helm: Any, values: dict[str, Any], problem: str) -> None:
    with pytest.raises(helm.HelmError, match=re.escape(problem)):
        render(helm, values)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", VALUES)
def test_kubernetes_accepts_the_objects_of_the_chart(helm: Any, version: str, name: str) -> None:
    schemas = pytest.importorskip("kubernetes_validate")
    objects = render(helm, VALUES[name])
    assert len(objects) >= 4
    for each in objects:
        if not each["apiVersion"].startswith(_OPERATOR):  # Kubernetes has no schema for these
            schemas.validate(each, version, strict=True)


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_accepts_the_plain_manifests(version: str) -> None:
    schemas = pytest.importorskip("kubernetes_validate")
    for each in plain():
        schemas.validate(each, version, strict=True)


def test_the_plain_manifests_are_those_of_the_chart(helm: Any) -> None:
    def without_release(value: Any) -> Any:
        """Leave out what Helm adds for itself."""
        ours = ("app.kubernetes.io/managed-by", "app.kubernetes.io/version", "helm.sh/chart")
        if isinstance(value, dict):
            rest = {key: without_release(each) for key, each in value.items() if key not in ours}
            if rest.get("annotations", {}).keys() == {"checksum/config"}:
                del rest["annotations"]
            return rest
        return [without_release(each) for each in value] if isinstance(value, list) else value

    def key(each: dict[str, Any]) -> tuple[str, str]:
        return each["kind"], each["metadata"]["name"]

    chart = without_release(render(helm, {"datasets": {"flights": "/data/flights.arrow"}}))
    assert sorted(chart, key=key) == sorted(plain(), key=key)
    folder = MANIFESTS.parent
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert kustomization["resources"] == [MANIFESTS.name]


def test_the_rules_of_the_chart_are_those_of_prometheus(helm: Any) -> None:
    rules = DEPLOY / "prometheus" / "rules.yaml"
    assert (CHART / "files" / "rules.yaml").read_text() == rules.read_text()
    rendered = select(render(helm, {"prometheusRule": {"enabled": True}}), "PrometheusRule")
    assert rendered["spec"] == yaml.safe_load(rules.read_text())


def test_prometheus_verifies_the_server_that_gets_its_token(helm: Any) -> None:
    (plain,) = select(render(helm, MONITORED), "ServiceMonitor")["spec"]["endpoints"]
    assert plain["scheme"] == "https"
    assert plain["authorization"]["credentials"] == {"name": "t", "key": "token"}
    secret = {"secret": {"name": "splitarrow-tls", "key": "ca.crt"}}
    assert plain["tlsConfig"] == {"serverName": "n", "ca": secret}
    (full,) = select(render(helm, VALUES["everything"]), "ServiceMonitor")["spec"]["endpoints"]
    assert full["tlsConfig"] == {
        **plain["tlsConfig"],
        "cert": {"secret": {"name": "c", "key": "tls.crt"}},
        "keySecret": {"name": "c", "key": "tls.key"},
    }
    (open_mode,) = select(render(helm, VALUES["nothing"]), "ServiceMonitor")["spec"]["endpoints"]
    assert not {"authorization", "tlsConfig"} & open_mode.keys()


def test_the_network_policy_admits_peers_to_the_ports_of_the_daemon(helm: Any) -> None:
    objects = render(helm, {})
    policy = select(objects, "NetworkPolicy")["spec"]
    labels = select(objects, "DaemonSet")["spec"]["template"]["metadata"]["labels"].items()
    assert policy["podSelector"]["matchLabels"].items() <= labels
    assert policy["policyTypes"] == ["Ingress"]
    readers, monitoring = policy["ingress"]
    assert "from" not in readers  # an upgrade of the chart cuts no reader off
    assert monitoring["from"] == [{"namespaceSelector": {}}]
    ports = [each["port"] for rule in policy["ingress"] for each in rule["ports"]]
    assert ports == [port["name"] for port in container(objects)["ports"]]
    values = VALUES["nothing"]["networkPolicy"]
    narrow = select(render(helm, VALUES["nothing"]), "NetworkPolicy")["spec"]
    assert narrow["policyTypes"] == ["Ingress", "Egress"]
    assert narrow["ingress"][0]["from"] == values["readers"]
    assert narrow["egress"] == values["egress"]


@pytest.mark.parametrize(
    "values", [{"hostNetwork": True}, {"networkPolicy": {"enabled": False}}], ids=str
)
def test_there_is_no_policy_without_effect(helm: Any, values: dict[str, Any]) -> None:
    assert "NetworkPolicy" not in {each["kind"] for each in render(helm, values)}


@pytest.mark.parametrize("name", VALUES)
def test_the_daemon_has_time_to_drain(helm: Any, name: str) -> None:
    objects = render(helm, VALUES[name])
    seconds = re.search(r"^drain_seconds = (\d+)$", settings(objects), re.MULTILINE)
    wait = container(objects)["lifecycle"]["preStop"]["exec"]["command"]
    assert seconds is not None
    assert wait[0] == "sleep"
    total = int(seconds[1]) + int(wait[1])
    assert pod(objects)["terminationGracePeriodSeconds"] >= total + 10


@pytest.mark.parametrize("name", VALUES)
def test_the_daemon_has_few_rights(helm: Any, name: str) -> None:
    objects = render(helm, VALUES[name])
    assert pod(objects)["securityContext"]["runAsNonRoot"]
    assert not pod(objects)["automountServiceAccountToken"]
    rights = container(objects)["securityContext"]
    assert rights["readOnlyRootFilesystem"]
    assert not rights["allowPrivilegeEscalation"]
    assert rights["capabilities"] == {"drop": ["ALL"]}
    volumes = {each["name"] for each in pod(objects)["volumes"]}
    assert {each["name"] for each in container(objects)["volumeMounts"]} == volumes


def test_services_and_budget_select_the_pods(helm: Any) -> None:
    objects = render(helm, {})
    labels = select(objects, "DaemonSet")["spec"]["template"]["metadata"]["labels"].items()
    budget = select(objects, "PodDisruptionBudget")["spec"]
    selectors = [each["spec"]["selector"] for each in objects if each["kind"] == "Service"]
    for selector in (*selectors, budget["selector"]["matchLabels"]):
        assert selector.items() <= labels
    # Kubernetes cannot count the pods that a DaemonSet should have.
    assert "maxUnavailable" not in budget
    ports = {port["name"] for port in container(objects)["ports"]}
    for each in objects:
        if each["kind"] == "Service":
            assert {port["targetPort"] for port in each["spec"]["ports"]} <= ports


def find_environment(objects: list[dict[str, Any]]) -> dict[str, str]:
    """Return the variables of a daemon on the node 192.0.2.7, as the kubelet expands them."""
    fields = {"status.hostIP": "192.0.2.7", "status.podIP": "10.244.1.2", "spec.nodeName": "node7"}
    found: dict[str, str] = {}
    for each in container(objects)["env"]:
        value = each.get("value")
        if value is None:
            value = fields[each["valueFrom"]["fieldRef"]["fieldPath"]]
        for name, known in found.items():
            value = value.replace(f"$({name})", known)
        found[each["name"]] = value
    return found


@pytest.mark.parametrize(
    ("name", "reader", "expected"),
    [
        ("defaults", "203.0.113.1", "10.244.1.2:8816"),
        ("everything", "203.0.113.1", "node7:8816"),
        ("node ports", "203.0.113.1", "192.0.2.7:30016"),
        ("node ports", "10.244.9.9", "10.244.1.2:8816"),
        ("load balancer", "203.0.113.1", "data.example.org:8816"),
        ("ingress", "203.0.113.1", "10.244.1.2:8816"),
    ],
)
def test_the_daemon_advertises_what_readers_reach(
    helm: Any, name: str, reader: str, expected: str
) -> None:
    variables = find_environment(render(helm, VALUES[name]))
    addresses = parse_advertised(
        list_pairs(variables["SPLITARROW_ADVERTISE"]),
        list_pairs(variables.get("SPLITARROW_ADVERTISE_FOR", {})),
    )
    found = addresses.find("tcp+tls", ip_address(reader))
    assert found is not None
    assert f"{found.host}:{found.port or 8816}" == expected


def test_an_ingress_and_a_gateway_lead_to_grpc_and_http(helm: Any) -> None:
    objects = render(helm, VALUES["ingress"])
    services = {each["metadata"]["name"]: each for each in objects if each["kind"] == "Service"}
    paths: dict[str, str] = {}
    for each in objects:
        if each["kind"] == "Ingress":
            (rule,) = each["spec"]["rules"]
            (path,) = rule["http"]["paths"]
            backend = path["backend"]["service"]
            ports = services[backend["name"]]["spec"]["ports"]
            (port,) = [one for one in ports if one["name"] == backend["port"]["name"]]
            paths[path["path"]] = port["targetPort"]
    assert paths == {"/arrow.flight.protocol.FlightService": "control", "/": "http"}
    variables = find_environment(objects)
    assert "https=data.example.org:443" in variables["SPLITARROW_ADVERTISE"]
    routes = {
        each["kind"]: each["spec"]["rules"][0]["backendRefs"][0]["port"]
        for each in render(helm, VALUES["gateway"])
        if each["kind"].endswith("Route")
    }
    assert routes == {"GRPCRoute": 8815, "HTTPRoute": 9816}


def test_node_ports_reach_the_daemon_of_the_node(helm: Any) -> None:
    specs = [each.get("spec", {}) for each in render(helm, VALUES["node ports"])]
    (external,) = [spec for spec in specs if spec.get("type") == "NodePort"]
    assert external["externalTrafficPolicy"] == "Local"
    ports = {port["nodePort"]: port["targetPort"] for port in external["ports"]}
    assert ports == {30015: "control", 30016: "data"}


def test_a_relay_owns_the_folders_that_it_writes_to(helm: Any) -> None:
    objects = render(helm, VALUES["relay"])
    (prepare,) = pod(objects)["initContainers"]
    mounts = {each["name"]: each["mountPath"] for each in container(objects)["volumeMounts"]}
    assert prepare["command"] == ["chown", "8816:8816", mounts["run"], mounts["cache"]]
    assert [each["name"] for each in prepare["volumeMounts"]] == ["run", "cache"]
    assert "data" not in mounts
    without = render(helm, VALUES["relay without a folder"])
    assert "initContainers" not in pod(without)
    assert {"name": "cache", "emptyDir": {}} in pod(without)["volumes"]


def test_the_relay_serves_with_the_configuration(helm: Any, node: Path, manager: Manager) -> None:
    """Only paths, addresses and the upstream are replaced by some that exist here."""
    ready = node / "ready.json"
    with Daemon({"x": node / "data" / "flights.arrow"}, control="grpc://127.0.0.1:0") as upstream:
        objects = render(helm, VALUES["relay"])
        path = node / "splitarrow.toml"
        text = settings(objects).replace("/etc/splitarrow", str(node / "etc" / "splitarrow"))
        path.write_text(f'ready_file = "{ready}"\n' + text)
        places = {
            "grpc+tls://storage1:8815": str(upstream.control_uri),
            "/cache": str(node / "cache"),
            "/etc/splitarrow/config/splitarrow.toml": str(path),
        }
        arguments = [replace_places(each, places) for each in container(objects)["args"]]
        places = {"/run/splitarrow": str(node / "run" / "splitarrow")}
        environment = {
            each["name"]: re.sub(r"0\.0\.0\.0:\d+", "127.0.0.1:0", replace_places(value, places))
            for each in container(objects)["env"]
            if (value := each.get("value")) is not None and each["name"] != "SPLITARROW_TLS_CA"
        }
        manager.start(*arguments, environment=environment)
        manager.wait_for("READY=1")
    assert json.loads(ready.read_text())["datasets"].keys() == {"x"}
    assert (node / "cache" / "relay" / "catalog.json").exists()


def replace_places(text: str, places: dict[str, str]) -> str:
    for place, here in places.items():
        text = text.replace(place, here)
    return text


@pytest.mark.parametrize("name", ["plain", "everything", "node ports", "ingress"])
def test_the_configuration_is_valid(helm: Any, node: Path, name: str) -> None:
    objects = plain() if name == "plain" else render(helm, VALUES[name])
    text = re.sub(r'"/(etc/splitarrow|data|uploads)', rf'"{node}/\1', settings(objects))
    path = node / "splitarrow.toml"
    path.write_text(text)
    environment = find_environment(objects)
    command = [*COMMAND, "check-config", str(path)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE, env={**environment, "HOME": "/"}
    )
    assert (done.returncode, done.stderr) == (0, "")
