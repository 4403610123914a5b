"""A hook of mkdocs: pages load the list of versions only where mike writes one."""

from __future__ import annotations

import os
from typing import Any

_VARIABLE = "MIKE_DOCS_VERSION"


def on_config(config: Any) -> Any:
    """Remove the selector of versions, unless mike builds the pages."""
    if _VARIABLE not in os.environ:
        config["extra"].pop("version", None)
    return config
