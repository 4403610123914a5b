"""The script for ``spark-submit``.

It has its own folder, because Python puts the folder of a script first on the import path.
In ``pipeline/``, the module ``types`` would shadow that of the standard library.
"""

from __future__ import annotations

from pathlib import Path

SCRIPT = str(Path(__file__).with_name("publish_job.py"))
"""The path of the script: ``spark-submit SCRIPT SOURCE NAME --to …``."""
