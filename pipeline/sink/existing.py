"""Whether a dataset exists, which decides about the modes ``error`` and ``ignore``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...publication.version_store import VersionStore
from ..options import Options
from .writer import OPTIONS


def find_existing(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the location of the dataset to write, if it exists.

    Parameters
    ----------
    values : mapping
        ``options``, those of ``df.write``.

    Returns
    -------
    dict
        ``existing``: the location; None if the dataset has no version, or has one of the same
        job, which is not written twice.

    Raises
    ------
    SplitArrowError
        If an option is wrong, or the location cannot be read.
    """
    options = Options(values["options"], OPTIONS)
    store = VersionStore(options.require("path", "/data/flights"))
    if store.load() is None:
        return {"existing": None}
    job = options.text("job_id")
    repeated = job is not None and any(
        manifest is not None and manifest.job == job
        for manifest in map(store.load, reversed(store.list_versions()))
    )
    return {"existing": None if repeated else store.location}
