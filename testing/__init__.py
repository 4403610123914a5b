"""Run a real daemon in a test."""

from __future__ import annotations

from .daemon import Daemon

__all__ = ["Daemon"]
