"""``python -m simulation SEED``, ``python -m simulation FIRST LAST``."""

import sys

from .run import main

raise SystemExit(main([each for each in sys.argv[1:] if not each.startswith("--")]))
