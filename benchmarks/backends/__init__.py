"""The backends: splitarrow over each transport, its peers, and the limits of the machine."""

from __future__ import annotations

from .backend import Backend
from .registry import BASELINE, REFERENCE, available_backends, backend_names, find_backend

__all__ = [
    "BASELINE",
    "REFERENCE",
    "Backend",
    "available_backends",
    "backend_names",
    "find_backend",
]
