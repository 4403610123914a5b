"""The process that plans for the reader in the JVM: ``python -m splitarrow.pipeline.plan``.

It reads requests from standard input, one JSON object in each line, and writes an answer to each
to standard output. It ends when standard input does. Requests contain tokens: it logs none.

``Planner.java`` starts this module. It imports the modules that answer only after it has redirected
standard output, so that an import that prints or fails becomes an answer, too.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any

from ..errors import NotFoundError, SplitArrowError


def main() -> None:
    """Answer requests until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # meant for the program that started Spark
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)  # whatever else is printed
        while line := sys.stdin.buffer.readline():
            answer = _answer(line)
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
            if answer.get("ended"):
                return


def _answer(line: bytes) -> dict[str, Any]:
    request: dict[str, Any] = {}
    try:
        request = json.loads(line)
        return _dispatch(request)
    except Exception as error:
        known = isinstance(error, SplitArrowError)
        return {
            "error": str(error) if known else f"{type(error).__name__}: {error}",
            "missing": isinstance(error, NotFoundError),
            # Whatever is left of the stream of a task is not a request.
            "ended": request.get("operation") == "stage",
        }


def _dispatch(request: Mapping[str, Any]) -> dict[str, Any]:
    if request["operation"] == "stage":
        from .shards import stage_stream

        return stage_stream(request, sys.stdin.buffer)
    from .jvm.planner import answer
    from .jvm.writing import WRITES, answer_write

    if request["operation"] in WRITES:
        return answer_write(request)
    return answer(request)


if __name__ == "__main__":
    main()
