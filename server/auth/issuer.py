"""The issuer of a server's tokens, as clients find it before they have one."""

from __future__ import annotations

from typing import Any

from ..config import Settings

METADATA_PATH = "/.well-known/oauth-protected-resource"
"""The path of the description at the HTTP listener: RFC 9728."""


def describe_issuer(settings: Settings) -> dict[str, Any] | None:
    """Return the issuer of the tokens that a server accepts; None if it has none.

    The fields are those of the metadata of a protected resource in RFC 9728, without ``resource``,
    and what a public client sends to the issuer.
    """
    if settings.jwks is None or settings.jwt_issuer is None:
        return None
    found = {
        "authorization_servers": [settings.jwt_issuer],
        "bearer_methods_supported": ["header"],
        "scopes_supported": (settings.oauth_scope or "").split() or None,
        "splitarrow_audience": settings.jwt_audience,
        "splitarrow_client_id": settings.oauth_client_id,
    }
    return {name: value for name, value in found.items() if value is not None}
