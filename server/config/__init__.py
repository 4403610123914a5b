"""The server's settings: each is declared once, in `Settings`.

Options of ``splitarrow serve``, ``SPLITARROW_…`` variables, keys of the TOML file and the table
in the documentation follow from the declaration.
"""

from __future__ import annotations

from .configuration import Configuration, load_settings
from .declaration import Declaration, Group, Reload, Setting, declarations
from .settings import DEFAULT_LISTEN, EMBEDDED_LISTEN, Settings

__all__ = [
    "DEFAULT_LISTEN",
    "EMBEDDED_LISTEN",
    "Configuration",
    "Declaration",
    "Group",
    "Reload",
    "Setting",
    "Settings",
    "declarations",
    "load_settings",
]
