"""How hypothesis runs here: the machine may be slow, so no example has a deadline."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    "splitarrow", max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("splitarrow")
