"""Attack one target with a coverage-guided fuzzer; `make fuzz` calls this.

    python -m fuzz TARGET SECONDS [OPTIONS OF LIBFUZZER]

New inputs are kept in `.fuzz/TARGET`. An input that does harm is written to `.fuzz/TARGET-crash-*`.
Fix what it shows, and add it to `tests/fuzz/corpus/TARGET`.
"""

from __future__ import annotations

import sys
import traceback
from contextlib import ExitStack
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any

# Only `make fuzz` installs it.
atheris: Any = import_module("atheris")

_ROOT = Path(__file__).resolve().parents[2]
_SERVER = "splitarrow.server"
_INSTRUMENTED = {
    "actions": [
        "splitarrow.protocol.request",
        f"{_SERVER}.auth",
        f"{_SERVER}.control",
        f"{_SERVER}.report",
        f"{_SERVER}.uploads",
    ],
    "http": [f"{_SERVER}.auth", f"{_SERVER}.http", "h11", "starlette", "uvicorn"],
    "tickets": ["json", "splitarrow.protocol.request", f"{_SERVER}.auth"],
}
"""The packages and modules whose branches guide the fuzzer. To instrument all takes a minute."""
_HERE = Path(__file__).resolve().parent
_MAX_BYTES = 4096
_MAX_SECONDS = 20
"""For one input."""
_MAX_MEBIBYTES = 2048


def _list_modules() -> list[str]:
    """Return the names of all modules of the package."""
    paths = (path.relative_to(_ROOT).with_suffix("") for path in _ROOT.glob("*/**/*.py"))
    names = ("splitarrow." + ".".join(path.parts) for path in paths)
    return ["splitarrow", *(name.removesuffix(".__init__") for name in names)]


def main() -> None:
    """Run the fuzzer, which does not return."""
    name, seconds, *options = sys.argv[1:]
    found = _ROOT / ".fuzz" / name
    found.mkdir(parents=True, exist_ok=True)
    arguments = [
        f"-max_total_time={seconds}",
        f"-max_len={_MAX_BYTES}",
        f"-dict={_HERE / 'words.dict'}",
        f"-timeout={_MAX_SECONDS}",
        f"-rss_limit_mb={_MAX_MEBIBYTES}",
        f"-artifact_prefix={found}-",
        *options,
        str(found),
        str(_HERE / "corpus" / name),
    ]
    included = _INSTRUMENTED[name]
    with ExitStack() as stack:
        with atheris.instrument_imports(
            include=list({each.partition(".")[0] for each in included}),
            exclude=[each for each in _list_modules() if not each.startswith(tuple(included))],
        ):
            from fuzz.targets import TARGETS

            attack = stack.enter_context(TARGETS[name]())

        def attack_and_keep(data: bytes) -> None:
            try:
                attack(data)
            except BaseException:
                found.with_name(f"{name}-crash-{sha256(data).hexdigest()[:16]}").write_bytes(data)
                traceback.print_exc()
                raise

        atheris.Setup([sys.argv[0], *arguments], attack_and_keep)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
