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
        for line in sys.stdin.buffer:
            answers.write(json.dumps(_answer(line)) + "\n")
            answers.flush()


def _answer(line: bytes) -> dict[str, Any]:
    try:
        return _dispatch(json.loads(line))
    except NotFoundError as error:
        return {"error": str(error), "missing": True}
    except SplitArrowError as error:
        return {"error": str(error)}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def _dispatch(request: Mapping[str, Any]) -> dict[str, Any]:
    if request["operation"] == "find":
        from .writer import find_existing

        return find_existing(request)
    from .jvm.planner import answer

    return answer(request)


if __name__ == "__main__":
    main()
