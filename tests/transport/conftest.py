"""Fixtures that start servers and programs."""

from __future__ import annotations

from helpers.shm_servers import program, serve

__all__ = ["program", "serve"]
