"""The main loop of a worker process: read commands, write replies.

See `worker_process` for the other side of the pipes.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, TextIO

Handler = Callable[[dict[str, Any]], dict[str, Any]]
"""Executes a command, and returns the reply."""
Setup = Callable[[dict[str, Any], ExitStack], tuple[dict[str, Any], Handler]]
"""Prepares for a job: returns the first reply, and the handler of the commands that follow.

The stack closes what it holds when the worker ends.
"""


def run_worker(setup: Setup) -> None:
    """Run a worker until its input ends.

    The first line of the input is the job, and every further line is a command. If `setup` or a
    handler raises, the reply is ``{"error": message}``, and the worker ends.
    """
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    # The output of libraries must not mix with the replies.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        _handle_commands(setup, sys.stdin, replies)
    except BrokenPipeError:
        pass  # the runner has exited


def _handle_commands(setup: Setup, commands: TextIO, replies: TextIO) -> None:
    def send(reply: dict[str, Any]) -> None:
        replies.write(json.dumps(reply) + "\n")
        replies.flush()

    job = json.loads(commands.readline())
    with ExitStack() as stack:
        try:
            reply, handle = setup(job, stack)
            send(reply)
            for line in commands:
                send(handle(json.loads(line)))
        except Exception as error:
            send({"error": f"{type(error).__name__}: {error}"})
