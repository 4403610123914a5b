"""Runs the code blocks of a page in order, as a reader of the page types them."""

from __future__ import annotations

import ast
import asyncio
import doctest
import json
import linecache
import os
import re
import shlex
import subprocess
import sys
import tomllib
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from helpers.daemons import find_free_network, find_free_port
from helpers.package import ROOT
from helpers.page_blocks import Block
from helpers.terminal import TerminalCommand
from splitarrow.protocol.uri import CONTROL_PORT, TCP_PORT
from splitarrow.server.auth.token_file import TokenFile
from splitarrow.testing import Daemon

COMMAND_SECONDS = 1200.0
"""The longest time for a command, in seconds. Some start Spark, beside whatever else runs."""
_AUTHORITY = re.compile(r"\b(\w+(?:\+tls)?)://([\w.,:-]+)|(?<![\w/.-])(host:8815)\b")
_THIS_HOST = {"127.0.0.1", "localhost"}
_ANYWHERE = "0.0.0.0"
_ROOT_FOLDERS = re.compile(r"(?:(?<=shm://)|(?<![\w.:/}…]))/(data|run|srv|tmp)/")
_PROTECTED = re.compile(r"--(insecure|token-file|jwks|tls-client-ca)\b")
_SERVE = re.compile(r"^splitarrow serve\b")
_PROMPT = re.compile(r"^\$ ", re.MULTILINE)
_QUANTITY = re.compile(r"\d[\d.,\\]* (?:µs|ms|s|[kMG]?B(?:/s)?)(?!\w)")
_DEFAULT_PORTS = {"grpc": CONTROL_PORT, "tcp": TCP_PORT}


class PageSession:
    """The folder, the addresses, the daemons and the names of one page.

    The addresses of a page are those of loopback interfaces of its own, so that
    pages run side by side with the ports that they name. Paths such as ``/data`` are in the folder.

    A host that a page reads from without starting a daemon on it has one with `datasets`.
    `web_hosts` maps the hosts of https URLs to those that stand in for them.
    """

    def __init__(
        self,
        folder: Path,
        datasets: dict[str, Path],
        environment: dict[str, str],
        web_hosts: dict[str, str] | None = None,
    ) -> None:
        self.names: dict[str, Any] = {"__name__": "__main__"}
        self._folder = folder
        self._datasets = datasets
        self._web_hosts = web_hosts or {}
        self._network = find_free_network()
        self.this_host = f"{self._network}.1"
        """The address in the place of 127.0.0.1."""
        self._addresses = {"127.0.0.1": self.this_host}
        self._deferred: list[str] = []
        self._ucx_port = find_free_port()
        self._daemons: dict[str, Daemon | TerminalCommand] = {}
        self._stack = ExitStack()
        self._environment = {
            **os.environ,
            **environment,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }

    def __enter__(self) -> PageSession:
        return self

    def __exit__(self, *_error: object) -> None:
        with self._stack:
            for value in reversed(self.names.values()):
                if type(value).__module__.startswith("splitarrow") and hasattr(value, "close"):
                    value.close()
            self.names.clear()

    def defer(self, block: Block) -> None:
        """Append a block of Python to the program that `run_deferred` runs."""
        self._deferred.append(f"# {block.place}\n{block.code}")

    def run_deferred(self, check: str = "") -> None:
        """Run the deferred blocks as one program in a process of its own, and then a check.

        Spark forks processes and ends with the process, and the workers of loaders are forked.
        """
        if self._deferred:
            program = self._folder / "program.py"
            program.write_text(self.translate("\n".join([*self._deferred, check])))
            self._start_missing_daemons(program.read_text())
            self._run_command(f"python -X faulthandler {program.name}", "")

    def run(self, block: Block) -> None:
        """Run one block; raise AssertionError if it does not do what the page shows."""
        runner = {
            "console": self._run_console,
            "json": self._run_json,
            "pycon": self._run_prompts,
            "python": self._run_python,
            "toml": self._run_toml,
        }[block.language]
        runner(block)

    # --- addresses and paths ---------------------------------------------------------------------

    def translate(self, text: str) -> str:
        """Return a text with the addresses and the folders of the page."""
        text = _AUTHORITY.sub(self._translate_authority, text)
        return _ROOT_FOLDERS.sub(rf"{self._folder}/root/\1/", text)

    def _translate_authority(self, match: re.Match[str]) -> str:
        if match[3]:
            return f"{self._address('host')}:8815"
        if match[1] == "ucx":  # UCX knows only one address of the loopback interface
            return f"ucx://127.0.0.1:{self._ucx_port}"
        if match[1] == "https":
            return f"https://{self._web_hosts.get(match[2], match[2])}"
        if match[1].split("+")[0] not in _DEFAULT_PORTS:
            return match[0]
        places = (place.partition(":") for place in match[2].split(","))
        translated = (self._address(host) + colon + port for host, colon, port in places)
        return f"{match[1]}://{','.join(translated)}"

    def _address(self, host: str) -> str:
        if not host:
            return host
        known = self._addresses
        host = "127.0.0.1" if host in _THIS_HOST or host == _ANYWHERE else host
        if host.startswith(f"{self._network}."):
            return host
        return known.setdefault(host, f"{self._network}.{len(known) + 1}")

    # --- languages -------------------------------------------------------------------------------

    def _run_python(self, block: Block) -> None:
        code = self.translate(block.code)
        self._start_missing_daemons(code)
        source = "\n" * (block.line - 1) + code
        linecache.cache[block.page] = (len(source), None, source.splitlines(True), block.page)
        compiled = compile(source, block.page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        result = eval(compiled, self.names)
        if result is not None:
            asyncio.run(result)

    def _run_prompts(self, block: Block) -> None:
        code = self.translate(block.code)
        self._start_missing_daemons(code)
        parsed = doctest.DocTestParser().get_doctest(
            code, self.names, block.page, block.page, block.line - 1
        )
        assert parsed.examples
        failures: list[str] = []
        runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
        runner.run(parsed, out=failures.append, clear_globs=False)
        self.names.update(parsed.globs)
        assert not failures, "".join(failures)

    def _run_json(self, block: Block) -> None:
        assert json.loads(block.code)

    def _run_toml(self, block: Block) -> None:
        """Load a file; keep it if its first line is a comment that begins with its name."""
        code = self.translate(block.code)
        named = re.match(r"# ([\w.-]+\.toml)\b", code)
        path = self._folder / (named[1] if named else "splitarrow.toml")
        path.write_text(code)
        path.chmod(0o600)
        if "[[tokens]]" in code:
            TokenFile(path)
        else:
            self._run_command(f"splitarrow check-config {path.name}", "… valid, with …")

    def _run_console(self, block: Block) -> None:
        for piece in _PROMPT.split(block.code)[1:]:
            lines = piece.splitlines(keepends=True)
            size = next(n for n, line in enumerate(lines) if not line.endswith("\\\n")) + 1
            command, shown = "".join(lines[:size]).strip(), "".join(lines[size:])
            if not check_instead(command):
                self._run_command(command, shown)

    # --- commands --------------------------------------------------------------------------------

    def _run_command(self, typed: str, shown: str) -> None:
        if _SERVE.match(typed):
            self._serve(typed, shown)
            return
        command = self.translate(typed)
        self._start_missing_daemons(command)
        running = TerminalCommand(command, self._folder, self._variables())
        with ExitStack() as stack:
            stack.callback(running.close)
            status = running.wait(COMMAND_SECONDS)
        fails = "splitarrow: error:" in shown
        assert (status != 0) == fails, f"{typed}\nexit status {status}\n{running.output}"
        self._compare(typed, shown, running.output)

    def _serve(self, typed: str, shown: str) -> None:
        """Start a daemon, which runs until the page ends or starts another one on its host."""
        hosts = re.findall(r"--(?:control|listen)[ =]\S+?://([\w.-]+)", typed)
        protected = _PROTECTED.search(typed)
        named = [host for host in hosts if host not in {*_THIS_HOST, _ANYWHERE}]
        if set(hosts) <= _THIS_HOST or protected:
            command = self.translate(typed)
        else:  # It fails, as everywhere.
            command = _ROOT_FOLDERS.sub(rf"{self._folder}/root/\1/", typed)
        host = self._address(named[0] if named else "127.0.0.1")
        self._stop(host)
        (self._folder / self._root(host) / "data").mkdir(parents=True, exist_ok=True)
        command = command.replace(f"{self._folder}/root/", f"{self._folder}/{self._root(host)}/")
        running = TerminalCommand(f"exec {command}", self._folder, self._variables(command))
        self._stack.callback(running.close)
        if "splitarrow: error:" in shown:
            assert running.wait(COMMAND_SECONDS) != 0
        else:
            assert running.wait_for("Press Ctrl-C to stop.", COMMAND_SECONDS), (
                f"{typed}\n{running.output}"
            )
            self._daemons[host] = running
        self._compare(typed, shown, running.output)

    def _compare(self, command: str, shown: str, output: str) -> None:
        """Compare what a page shows with an output, but for white space, sizes, times and rates.

        "…" stands for any text.
        """
        for host, address in self._addresses.items():
            output = re.sub(rf"{re.escape(address)}(?!\d)", host, output)
        output = output.replace(f"{self._folder}/root", "")
        pattern = re.escape(" ".join(shown.split())).replace("…", ".*").replace("\\ ", " ")
        pattern = _QUANTITY.sub(r"\\S+ \\S+", pattern)
        if pattern and not re.fullmatch(pattern, " ".join(output.split()), re.DOTALL):
            raise AssertionError(f"{command}\nshows\n{output}\nbut the page shows\n{shown}")

    def _root(self, host: str) -> str:
        """Return the folder for the root of a host. Hosts that a page names share no folders."""
        return "root" if host == self._address("127.0.0.1") else f"root-{host.rpartition('.')[2]}"

    def _variables(self, command: str = "") -> dict[str, str]:
        listen = [f"tcp://{self.this_host}:8816", "shm://"]
        if "--workers" in command:  # which cannot share memory; by default, they do without
            listen.pop()
        return {**self._environment, "SPLITARROW_LISTEN": json.dumps(listen)}

    def _start_missing_daemons(self, text: str) -> None:
        """Start a daemon on each host that a translated text reads from, unless one runs there."""
        for scheme, places, _ in _AUTHORITY.findall(text):
            for place in places.split(",") if scheme in _DEFAULT_PORTS else ():
                address, _, port = place.partition(":")
                if port != "0" and address and address not in self._daemons:
                    uploads = self._folder / self._root(address) / "uploads"
                    uploads.mkdir(parents=True)
                    daemon = Daemon(
                        self._datasets,
                        listen=[f"tcp://{address}:8816", "shm://"],
                        control=f"grpc://{address}:8815",
                        writable=uploads,
                    )
                    self._daemons[address] = self._stack.enter_context(daemon)

    def _stop(self, host: str) -> None:
        running = self._daemons.pop(host, None)
        if isinstance(running, TerminalCommand):
            running.stop()
        elif running is not None:
            running.close()


def check_instead(command: str) -> bool:
    """Check a command that installs or builds, instead of running it; return whether it is one."""
    if found := re.match(r"(?:python3? -m )?pip install(?: --\S+)* ('[^']+'|\S+)", command):
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        for name in found[1].strip("'").split():
            name = re.sub(r"^\.(?=\[|$)", "splitarrow", name)
            requirement = Requirement(name)
            if requirement.name == "splitarrow":
                assert requirement.extras <= set(project["optional-dependencies"]), command
        return True
    if re.match(r"splitarrow bench|python -m splitarrow\.benchmarks", command):
        # Measurements take minutes; the parser checks the options before it shows the help.
        done = subprocess.run(
            ["bash", "-c", f"{command.partition('#')[0]} --help"],
            env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return True
    if found := re.match(r"make\b([^#]*)", command):
        rules = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        for word in shlex.split(found[1]):
            assert word in rules or "=" in word, command
        return True
    if found := re.match(r"\.venv/bin/pytest\b([^#]*)", command):
        arguments = [*shlex.split(found[1]), "--collect-only", "-qq"]
        done = subprocess.run([sys.executable, "-m", "pytest", *arguments], cwd=ROOT)
        assert done.returncode == 0, command
        return True
    return False
