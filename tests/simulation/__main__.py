"""``python -m simulation SEED``, ``python -m simulation FIRST LAST``."""

import argparse
import sys

from .planted import plant

parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
parser.add_argument("--plant")
if name := parser.parse_known_args()[0].plant:
    plant(name)

from .run import main  # noqa: E402  # the defect comes first

raise SystemExit(main(sys.argv[1:]))
