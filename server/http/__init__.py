"""The HTTP listener: metrics, health checks, JSON for scripts and the status page.

It runs on a thread of its own, with its own event loop, so that it answers while the daemon loads
its datasets, and neither a slow client nor a large scrape delays a stream.
"""

from __future__ import annotations
