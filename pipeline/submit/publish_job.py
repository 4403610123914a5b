"""``splitarrow publish`` as a script: ``spark-submit`` accepts only the path of a file."""

from __future__ import annotations

import runpy
import sys

if __name__ == "__main__":
    sys.argv[1:1] = ["publish"]
    runpy.run_module("splitarrow", run_name="__main__")
