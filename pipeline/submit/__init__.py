"""What ``spark-submit`` runs, in a folder of its own: that folder is where Python looks first."""

from __future__ import annotations

from pathlib import Path

SCRIPT = str(Path(__file__).with_name("publish_job.py"))
"""``spark-submit SCRIPT SOURCE NAME --to …`` is ``splitarrow publish SOURCE NAME --to …``."""
