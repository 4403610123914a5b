"""JSON Web Tokens with short lifetimes, and the settings of a server that accepts them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from joserfc import jwk, jwt

ISSUER, AUDIENCE = "https://issuer.example", "splitarrow"


class TokenIssuer:
    """Signs tokens. Its key set is a file in a folder."""

    def __init__(self, folder: Path) -> None:
        self._key = jwk.ECKey.generate_key("P-256", {"kid": "issuer"})
        self._jwks = folder / "jwks.json"
        self._jwks.write_text(json.dumps(self.key_set()))
        self.issued: list[str] = []
        """All tokens so far."""

    def key_set(self) -> dict[str, Any]:
        """Return the public keys."""
        return {"keys": [self._key.as_dict(private=False)]}

    def settings(self, **more: Any) -> dict[str, Any]:
        """Return the settings of a server that accepts the tokens."""
        jwks = str(self._jwks)
        return {"jwks": jwks, "jwt_issuer": ISSUER, "jwt_audience": AUDIENCE, **more}

    def issue(self, seconds: float = 60.0, **claims: Any) -> str:
        """Return a token that expires after some seconds."""
        now = time.time()
        claims = {
            "iss": ISSUER,
            "aud": AUDIENCE,
            "sub": "training",
            "datasets": ["*"],
            "write": ["*"],
            "exp": now + seconds,
            "jti": f"{len(self.issued)}",
            **claims,
        }
        header = {"alg": "ES256", "kid": "issuer"}
        self.issued.append(jwt.encode(header, claims, self._key, algorithms=["ES256"]))
        return self.issued[-1]
