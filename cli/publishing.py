"""The options of ``splitarrow serve`` about published datasets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from .wording import option

_PANEL = "Published datasets"

KeepVersions = Annotated[
    int | None,
    option(
        min=1,
        help="How many versions to keep: older ones are removed when nobody reads them, and with "
        "them the shards that no other version names.",
        default="all",
        metavar="N",
        panel=_PANEL,
    ),
]
PollSeconds = Annotated[
    float | None,
    option(
        help="How often to look for new versions in object stores, in seconds.",
        default="10",
        metavar="SECONDS",
        panel=_PANEL,
    ),
]
ObjectCache = Annotated[
    Path | None,
    option(
        help="A folder for shards from object stores.",
        default="splitarrow/objects in the user's cache folder",
        metavar="FOLDER",
        panel=_PANEL,
    ),
]
ObjectCacheBytes = Annotated[
    str | None,
    option(
        help="The most that is kept there, as in 100GiB.",
        default="10GiB",
        metavar="SIZE",
        panel=_PANEL,
    ),
]
