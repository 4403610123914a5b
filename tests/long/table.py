"""Print the results of long tests as a table: ``python tests/long/table.py FOLDER``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

_HEAD = ("battery", "outcome", "date", "scale", "seconds")


def main(folder: Path) -> None:
    """Print one row for the last result of each battery."""
    results: dict[str, dict[str, Any]] = {}
    for line in (folder / "batteries.jsonl").read_text().splitlines():
        result = json.loads(line)
        results[result["battery"]] = result
    print(f"| {' | '.join(_HEAD)} | figures |")
    print("| --- " * (len(_HEAD) + 1) + "|")
    for result in results.values():
        cells = [str(result.pop(key)) for key in _HEAD]
        figures = "; ".join(f"{key}: {value}" for key, value in result.items())
        print(f"| {' | '.join(cells)} | {figures} |")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
