"""Exit with status 0 if the control plane at a URI is serving, and with 1 otherwise.

This needs no token. For ``grpc+tls://``, the variable SPLITARROW_TLS_CA names the certificate
authority to trust, and SPLITARROW_TLS_SERVER_NAME the name in the server's certificate.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import grpc

_SECONDS = 4
_SERVING = b"\x08\x01"
"""A HealthCheckResponse with the status SERVING."""


def _channel(uri: str) -> grpc.Channel:
    scheme, _, address = uri.partition("://")
    if scheme != "grpc+tls":
        return grpc.insecure_channel(address)
    authority = os.environ.get("SPLITARROW_TLS_CA")
    name = os.environ.get("SPLITARROW_TLS_SERVER_NAME")
    credentials = grpc.ssl_channel_credentials(Path(authority).read_bytes() if authority else None)
    options = [("grpc.ssl_target_name_override", name)] if name else []
    return grpc.secure_channel(address, credentials, options)


def healthy(uri: str) -> bool:
    """Return whether the control plane at a URI is serving."""
    with _channel(uri) as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        try:
            return check(b"", timeout=_SECONDS) == _SERVING
        except grpc.RpcError:
            return False


if __name__ == "__main__":
    sys.exit(not healthy(sys.argv[1]))
