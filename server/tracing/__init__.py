"""Traces of the server, which an OpenTelemetry collector gets by OTLP over HTTP.

Nothing here imports OpenTelemetry before a tracer is opened, and a server that records no traces
has no tracer at all.
"""

from .endpoint import check_endpoint
from .opening import Tracer, open_tracer

__all__ = ["Tracer", "check_endpoint", "open_tracer"]
