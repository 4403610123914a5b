"""The package ``torch``, which the extra ``torch`` installs."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ..errors import MissingExtraError


def _import_torch() -> Any:
    try:
        return import_module("torch")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingExtraError(
            "splitarrow.pytorch needs PyTorch: pip install 'splitarrow[torch]'"
        ) from None


torch = _import_torch()
"""The module. Its types are not checked, because PyTorch is optional."""
