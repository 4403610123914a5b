"""The container image and the compose file: their commands are run here, without containers."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
import venv
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import trustme

import splitarrow
from helpers.http_requests import request
from helpers.package import copy_sources
from helpers.service_manager import COMMAND, DEPLOY, PATIENCE, ROOT, Manager

pytestmark = pytest.mark.slow

DOCKERFILE = DEPLOY / "docker" / "Dockerfile"
HEALTHY = DEPLOY / "docker" / "healthy.py"
NOBODY = "grpc://127.0.0.1:1"


def instructions() -> list[tuple[str, str]]:
    """What the Dockerfile does: instructions and what follows them."""
    text = re.sub(r"^\s*#.*\n", "", DOCKERFILE.read_text(), flags=re.MULTILINE)
    lines = text.replace("\\\n", " ").splitlines()
    parts = [line.split(maxsplit=1) for line in lines if line.strip()]
    return [(name, rest.strip()) for name, rest in parts]


def last(name: str) -> str:
    return [rest for found, rest in instructions() if found == name][-1]


def variables() -> dict[str, str]:
    """What the image sets in the environment of the daemon."""
    pairs = (word.partition("=") for word in shlex.split(last("ENV")))
    return {name: value for name, _, value in pairs if name.startswith("SPLITARROW_")}


def check(uri: str) -> int:
    command = json.loads(last("HEALTHCHECK").partition("CMD")[2])
    assert command[0] == "python"
    assert Path(command[1]).name == HEALTHY.name
    assert command[2] == variables()["SPLITARROW_CONTROL"].replace("0.0.0.0", "127.0.0.1")
    return subprocess.run([sys.executable, str(HEALTHY), uri], timeout=PATIENCE).returncode


def test_the_image_is_small_and_its_user_is_nobody_special() -> None:
    known = {"ARG", "FROM", "WORKDIR", "COPY", "RUN", "ENV", "USER", "EXPOSE"}
    known |= {"LABEL", "STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT", "CMD"}
    assert {name for name, _ in instructions()} == known
    bases = [rest.split()[0] for name, rest in instructions() if name == "FROM"]
    assert bases == ["${PYTHON_IMAGE}"] * 2
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", last("USER"))
    ports = set(re.findall(r":(\d+)", " ".join(variables().values())))
    assert set(last("EXPOSE").split()) == ports == {"8815", "8816"}


TAG = "python:3.12-slim"
DIGEST = "sha256:" + "0" * 64


@pytest.mark.parametrize(
    ("image", "allows_tag", "status"),
    [(f"{TAG}@{DIGEST}", "false", 0), (TAG, "true", 0), (TAG, "false", 1), ("", "false", 1)],
)
def test_the_build_fails_without_a_digest(image: str, allows_tag: str, status: int) -> None:
    """The first command of the build checks the name of the base image."""
    arguments = dict(
        rest.split("=") for name, rest in instructions() if name == "ARG" and "=" in rest
    )
    assert arguments == {"PYTHON_IMAGE": TAG, "ALLOW_TAG": "false"}
    names = [name for name, _ in instructions()]
    assert names[:5] == ["ARG", "FROM", "ARG", "ARG", "RUN"]
    command = instructions()[4][1]
    environment = {"PYTHON_IMAGE": image, "ALLOW_TAG": allows_tag}
    done = subprocess.run(["sh", "-c", command], env=environment, capture_output=True, text=True)
    assert done.returncode == status
    assert ("has no digest" in done.stderr) == bool(status)


def test_every_package_of_the_image_has_a_hash() -> None:
    """uv.lock has all of them but uv, whose entry is copied to a file for pip."""
    commands = " ".join(rest for name, rest in instructions() if name == "RUN")
    installs = re.findall(r"(?:pip install|uv sync|uv pip install|uv build) [^&]*", commands)
    assert [
        re.findall("--(?:require-hashes|locked|offline|no-build-isolation)", each)
        for each in installs
    ] == [
        ["--require-hashes"],
        ["--locked"],
        ["--locked"],
        ["--no-build-isolation"],
        ["--offline"],
    ]
    lock = tomllib.loads((ROOT / "uv.lock").read_text())
    (uv,) = [package for package in lock["package"] if package["name"] == "uv"]
    hashes = {each["hash"] for each in (uv["sdist"], *uv["wheels"])}
    requirement, *found = (DOCKERFILE.parent / "uv.txt").read_text().replace("\\\n", "").split()
    assert requirement == f"uv=={uv['version']}"
    assert {each.removeprefix("--hash=") for each in found} == hashes


def test_what_the_image_copies_is_there_and_not_ignored() -> None:
    copied = [rest.split()[0] for name, rest in instructions() if name == "COPY"]
    here = [name for name in copied if not name.startswith("--")]
    assert here == [".", str(HEALTHY.relative_to(ROOT))]
    ignored = (DOCKERFILE.parent / "Dockerfile.dockerignore").read_text().split()
    assert {f"!{here[1]}", "!deploy/docker/uv.txt"} <= set(ignored)


@pytest.mark.long
def test_the_commands_of_the_build_work(tmp_path: Path) -> None:
    """They run in a folder instead of the root. The image gets the folder `opt/splitarrow`."""
    source = tmp_path / "src"
    copy_sources(source)
    (tmp_path / "opt").mkdir()
    venv.create(tmp_path / "base", with_pip=True)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
        "PATH": f"{tmp_path / 'base' / 'bin'}:{os.environ['PATH']}",
    }
    parts = instructions()
    first, second = (number for number, (name, _) in enumerate(parts) if name == "FROM")
    stage = parts[first:second]
    for settings in (rest for name, rest in stage if name == "ENV"):
        environment |= dict(pair.split("=") for pair in settings.split())
    environment |= {"PYTHON_IMAGE": f"{TAG}@{DIGEST}", "ALLOW_TAG": "false"}
    commands = [rest for name, rest in stage if name == "RUN"]
    assert len(commands) == 3
    for command in commands:
        here = re.sub(r"(?<![\w.])/(opt|wheels)\b", rf"{tmp_path}/\1", command)
        subprocess.run(
            ["bash", "-c", here], cwd=source, env=environment, check=True, timeout=10 * PATIENCE
        )
    installed = tmp_path / "opt" / "splitarrow"
    listed = json.loads((installed / "sbom.cdx.json").read_text())
    assert listed["bomFormat"] == "CycloneDX"
    packages = {component["name"]: component["version"] for component in listed["components"]}
    assert packages["splitarrow"] == splitarrow.__version__
    assert {"pyarrow", "grpcio", "joserfc", "cryptography"} <= packages.keys()
    assert "pip" not in packages
    command = [installed / "bin" / "splitarrow", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert done.stdout == f"splitarrow {splitarrow.__version__}\n"
    size = sum(path.lstat().st_size for path in installed.rglob("*"))
    assert size < 450e6, f"{size / 1e6:.0f} MB"


def test_the_image_starts_with_a_command_of_ours() -> None:
    command = [*json.loads(last("ENTRYPOINT")), *json.loads(last("CMD"))]
    assert command[0] == "splitarrow"
    done = subprocess.run([*COMMAND, *command[1:]], capture_output=True, timeout=PATIENCE)
    assert done.returncode == 0


def test_a_server_is_healthy_and_nobody_is_not() -> None:
    with splitarrow.serve({"t": pa.table({"a": [1]})}, control="grpc://127.0.0.1:0") as server:
        assert server.control_uri is not None
        assert check(server.control_uri) == 0
    assert check(NOBODY) == 1


def test_health_over_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = trustme.CA()
    files = {name: tmp_path / f"{name}.pem" for name in ("authority", "chain", "key")}
    certificate = authority.issue_cert("node7")
    authority.cert_pem.write_to_path(files["authority"])
    certificate.cert_chain_pems[0].write_to_path(files["chain"])
    certificate.private_key_pem.write_to_path(files["key"])
    with splitarrow.serve(
        {"t": pa.table({"a": [1]})},
        control="grpc+tls://127.0.0.1:0",
        tls_cert=files["chain"],
        tls_key=files["key"],
    ) as server:
        assert server.control_uri is not None
        monkeypatch.setenv("SPLITARROW_TLS_CA", str(files["authority"]))
        assert check(server.control_uri) == 1
        monkeypatch.setenv("SPLITARROW_TLS_SERVER_NAME", "node7")
        assert check(server.control_uri) == 0


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    yaml: Any = pytest.importorskip("yaml")
    return yaml.safe_load((DOCKERFILE.parent / "compose.yaml").read_text())


def test_the_compose_file_fits_together(compose: dict[str, Any]) -> None:
    services = compose["services"]
    for service in services.values():
        assert set(service.get("depends_on", ())) <= services.keys()
        assert set(service["networks"]) <= compose["networks"].keys()
        assert {mount.split(":")[0] for mount in service["volumes"]} <= compose["volumes"].keys()
        assert service["read_only"]
        assert service["image"] == services["seed"]["image"]
    context = (DOCKERFILE.parent / services["seed"]["build"]["context"]).resolve()
    assert context / services["seed"]["build"]["dockerfile"] == DOCKERFILE


def test_the_commands_of_the_compose_file_work(
    compose: dict[str, Any], manager: Manager, tmp_path: Path
) -> None:
    """They run one after the other; only paths, hosts and ports are others."""
    services = compose["services"]
    for folder in ("data", "out"):
        (tmp_path / folder).mkdir()

    def here(text: str) -> str:
        text = re.sub(r"0\.0\.0\.0:\d+", "127.0.0.1:0", text)
        return re.sub(r'(^|[="])/(data|out)/', rf"\g<1>{tmp_path}/\2/", text)

    seed = services["seed"]
    assert seed["entrypoint"] == ["python", "-c"]
    script = here(seed["command"][0])
    assert str(tmp_path) in script
    subprocess.run([sys.executable, "-c", script], check=True, timeout=PATIENCE)

    client = [here(argument) for argument in services["client"]["command"]]
    for name in ("metadata", "bodies"):
        ready_file = tmp_path / f"{name}.json"
        environment = {**variables(), **services[name]["environment"]}
        environment = {key: here(value) for key, value in environment.items()}
        manager.start(
            *map(here, services[name]["command"]),
            environment={**environment, "SPLITARROW_READY_FILE": str(ready_file)},
        )
        manager.wait_for("READY=1")
        ready = json.loads(ready_file.read_text())
        assert check(ready["control"]) == 0
        address = ready["listen"][0].partition("?")[0]
        client = [argument.replace(f"tcp://{name}:8816", address) for argument in client]
    done = subprocess.run([*COMMAND, *client], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    with (
        pa.OSFile(str(tmp_path / "out" / "flights.arrow"), "rb") as file,
        pa.ipc.open_file(file) as reader,
    ):
        assert reader.read_all().column("number").to_pylist() == list(range(1_000_000))


@pytest.fixture(scope="module")
def quickstart() -> dict[str, Any]:
    yaml: Any = pytest.importorskip("yaml")
    return yaml.safe_load((DOCKERFILE.parent / "quickstart.yaml").read_text())


def test_the_quick_start_fits_together(quickstart: dict[str, Any], compose: dict[str, Any]) -> None:
    services = quickstart["services"]
    for name, service in services.items():
        assert set(service.get("depends_on", ())) <= services.keys()
        volumes = {mount.split(":")[0] for mount in service.get("volumes", ())}
        assert {each for each in volumes if "/" not in each} <= quickstart["volumes"].keys()
        # What has no tokens is published for this host only.
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ())), name
        if service["image"] == "splitarrow":
            assert service["read_only"]
        else:
            assert re.search(r":v?\d+\.\d+\.\d+$", service["image"]), name
    assert services["seed"]["command"] == compose["services"]["seed"]["command"]


def test_the_commands_of_the_quick_start_work(
    quickstart: dict[str, Any], data: Path, manager: Manager, tmp_path: Path
) -> None:
    services = quickstart["services"]

    def here(text: str) -> str:
        text = re.sub(r"0\.0\.0\.0:\d+", "127.0.0.1:0", text)
        return text.replace("=/data/", f"={data}/")

    ready_file = tmp_path / "ready.json"
    environment = {**variables(), **services["daemon"]["environment"]}
    environment = {key: here(value) for key, value in environment.items()}
    environment |= {"SPLITARROW_READY_FILE": str(ready_file), "SPLITARROW_ADVERTISE": "127.0.0.1"}
    manager.start(*map(here, services["daemon"]["command"]), environment=environment)
    manager.wait_for("READY=1")
    ready = json.loads(ready_file.read_text())
    # Prometheus names the daemon by the name of its service.
    metrics = request(ready["http"], "/metrics", Host="daemon:9816")
    assert metrics.status == 200
    assert "splitarrow_ready 1" in metrics.text
    reader = services["reader"]
    assert reader["entrypoint"] == ["python", "-c"]
    script = reader["command"][0].replace("grpc://daemon:8815", ready["control"])
    assert ready["control"] in script
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "1000 rows\n"
        process.kill()
