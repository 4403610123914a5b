"""The README runs as typed, from top to bottom, in an empty folder."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.daemons import find_free_port
from helpers.package import ROOT
from helpers.page_blocks import Block, read_blocks
from helpers.page_session import COMMAND_SECONDS, check_instead
from helpers.terminal import Shell

# Commands that need the network. Their extras are compared with those of pyproject.toml instead.
NOT_RUN = [
    "pip install .",
    "pip install '.[torch]'",
    "pip install '.[spark]'",
    "pip install '.[http,ucx]'",
]

BLOCKS = read_blocks(ROOT / "README.md")
_FIXED_PORT = re.compile(r"(?<=127\.0\.0\.1:)\d+\b")
# Runs each line of standard input, a block as JSON, as if it was typed at one prompt.
_PROMPT = """
import json, sys
for line in sys.stdin:
    exec(compile(json.loads(line), "README.md", "exec"), globals())
    print("done", flush=True)
"""


class Reader:
    """A person who types the blocks in an empty folder: one server, one Python prompt."""

    def __init__(self, folder: Path) -> None:
        self._ports: dict[str, str] = {}
        # The default port of readers.
        listen = {} if _is_free(8816) else {"SPLITARROW_LISTEN": '["tcp://127.0.0.1:0","shm://"]'}
        self._shell = Shell(folder, listen, COMMAND_SECONDS)
        self._python = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", "-c", _PROMPT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=folder,
            env=self._shell.environment,
        )

    def type(self, block: Block) -> None:
        code = _FIXED_PORT.sub(self._choose_port, block.code)
        if block.language == "python":
            self._type_python(code)
            return
        assert block.language == "console", block.place
        for line in code.splitlines():
            command = line.removeprefix("$ ").partition(" #")[0].strip()
            assert line.startswith("$ "), line
            if command in NOT_RUN:
                assert check_instead(command)
            elif command.startswith("splitarrow serve"):
                self._shell.stop_servers()  # as the page says
                self._shell.serve(command)
            else:
                self._shell.run(command)

    def _choose_port(self, match: re.Match[str]) -> str:
        """Return a port of the page if it is free, or otherwise any that is."""
        port = match[0]
        if port not in self._ports:
            self._ports[port] = port if _is_free(int(port)) else str(find_free_port())
        return self._ports[port]

    def _type_python(self, code: str) -> None:
        assert self._python.stdin is not None
        assert self._python.stdout is not None
        print(json.dumps(code), file=self._python.stdin, flush=True)
        for line in self._python.stdout:
            if line == "done\n":
                return
        raise AssertionError(f"Python ended with status {self._python.wait()} in\n{code}")

    def close(self) -> None:
        """End the processes. Python ends by itself at the end of its input."""
        try:
            self._python.communicate(timeout=COMMAND_SECONDS)
        finally:
            self._python.kill()
            self._shell.stop_servers()
        assert self._python.returncode == 0


def _is_free(port: int) -> bool:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    reader = Reader(tmp_path)
    try:
        yield reader
    finally:
        reader.close()


TORCH = next(index for index, block in enumerate(BLOCKS) if "import torch" in block.code)


@pytest.mark.parametrize(
    "blocks",
    [
        pytest.param(BLOCKS[:TORCH] + BLOCKS[TORCH + 1 :], marks=pytest.mark.slow, id="slow"),
        pytest.param(BLOCKS[: TORCH + 1], marks=pytest.mark.torch, id="torch"),
    ],
)
@pytest.mark.timeout(2400)
@pytest.mark.xdist_group("readme")
def test_the_readme_runs_as_typed(blocks: list[Block], reader: Reader) -> None:
    for block in blocks:
        try:
            reader.type(block)
        except BaseException as error:
            error.add_note(f"in the block at {block.place}")
            raise


def test_the_list_of_commands_that_do_not_run_is_current() -> None:
    code = "".join(block.code for block in BLOCKS)
    assert [command for command in NOT_RUN if f"$ {command}" not in code] == []
