"""``python -m simulation SEED``, ``python -m simulation FIRST LAST``."""

import sys

from .planted import plant

for argument in sys.argv[1:]:
    if argument.startswith("--plant="):
        plant(argument.removeprefix("--plant="))

from .run import main  # noqa: E402  # the defect comes first

raise SystemExit(main(sys.argv[1:]))
