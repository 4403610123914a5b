"""Real proxies: nginx, HAProxy and Envoy, from ``.venv/proxies`` or from the host."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from helpers.package import ROOT
from helpers.page_blocks import read_blocks
from helpers.waiting import wait_until

FOLDER = ROOT / ".venv" / "proxies"
"""What ``make .venv/proxies`` installs: a part of the file system, which has Envoy in its root."""
_PAGE = ROOT / "docs" / "guide" / "proxies.md"
_BEGINNINGS = {"nginx": "stream {", "HAProxy": "defaults", "Envoy": "static_resources:"}
_LIBRARIES = [FOLDER / "usr" / "lib" / f"{os.uname().machine}-linux-gnu", FOLDER / "usr" / "lib"]


class Ports(NamedTuple):
    """The ports of a proxy."""

    data: int
    web: int


def run_nginx(folder: Path, text: str) -> list[str]:
    modules = [FOLDER / "usr/lib/nginx/modules", Path("/usr/lib/nginx/modules")]
    found = [path / "ngx_stream_module.so" for path in modules]
    loads = [f"load_module {path};\n" for path in found if path.exists()][:1]
    log = "error_log stderr;\n"
    paths = "".join(
        f"    {name}_temp_path {folder / name};\n"
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    text = text.replace("http {\n", f"http {{\n    access_log off;\n{paths}")
    head = f"daemon off;\nuser root;\npid {folder}/pid;\n{log}{''.join(loads)}events {{}}\n"
    (folder / "nginx.conf").write_text(head + text)
    return [find_program("nginx"), "-p", str(folder), "-c", str(folder / "nginx.conf")]


def run_haproxy(folder: Path, text: str) -> list[str]:
    (folder / "haproxy.cfg").write_text(text)
    return [find_program("haproxy"), "-db", "-f", str(folder / "haproxy.cfg")]


def run_envoy(folder: Path, text: str) -> list[str]:
    (folder / "envoy.yaml").write_text(text)
    options = ["--use-dynamic-base-id", "--concurrency", "1", "--log-level", "warning"]
    return [find_program("envoy"), "-c", str(folder / "envoy.yaml"), *options]


PROXIES: dict[str, Callable[[Path, str], list[str]]] = {
    "nginx": run_nginx,
    "HAProxy": run_haproxy,
    "Envoy": run_envoy,
}
"""Writes the configuration of a proxy, and returns the command that runs it, by name."""


def find_program(name: str) -> str:
    """Return the path of a program; skip the test if there is none."""
    places = [FOLDER / "usr/sbin", FOLDER / "envoy" / "_bin"]
    path = os.pathsep.join([*map(str, places), os.environ.get("PATH", ""), "/usr/sbin"])
    found = shutil.which(name, path=path)
    if found is None:
        pytest.skip(f"no {name}: run make .venv/proxies")
    return found


def read_guide(name: str) -> str:
    """Return the configuration of a proxy, as the guide has it."""
    (found,) = [
        block.code for block in read_blocks(_PAGE) if block.code.startswith(_BEGINNINGS[name])
    ]
    return found


def find_envoy_tls(text: str, protocols: str = "h2, http/1.1") -> str:
    """Return the part of Envoy's configuration that makes a listener use TLS."""
    found = re.search(r"        - transport_socket:.*?(?=          filters:)", text, re.DOTALL)
    assert found is not None
    return found[0].replace("[h2, http/1.1]", f"[{protocols}]")


def configure(
    name: str, ports: Mapping[str, int], certificate: Path, changes: Mapping[str, str]
) -> str:
    """Return the configuration of the guide with other ports, for daemons of this host.

    `changes` has more texts that are replaced, each of which occurs once.
    """
    text = read_guide(name)
    for old, new in changes.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    marks = {old: f"<{index}>" for index, old in enumerate(ports)}
    for old, mark in marks.items():
        assert old in text
        text = text.replace(old, mark)
    for old, mark in marks.items():
        text = text.replace(mark, str(ports[old]))
    return text.replace("10.0.0.7", "127.0.0.1").replace("/etc/ssl/data.pem", str(certificate))


@contextmanager
def running(command: list[str], folder: Path, ports: Ports) -> Generator[None]:
    """Run a proxy until the context ends."""
    log = folder / "log"
    libraries = os.pathsep.join(map(str, _LIBRARIES))
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env={**os.environ, "LD_LIBRARY_PATH": libraries},
            stdout=output,
            stderr=output,
        )
    try:
        wait_until(lambda: process.poll() is not None or all(map(_listens, ports)), f"{command[0]}")
        assert process.poll() is None, log.read_text()
        yield
    finally:
        process.terminate()
        process.wait(30)


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def find_ports() -> Ports:
    """Return two ports that were free."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("", 0)) as two:
        return Ports(one.getsockname()[1], two.getsockname()[1])
