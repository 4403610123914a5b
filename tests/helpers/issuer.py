"""An issuer of JSON Web Tokens: its keys on an HTTPS server of this host."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import trustme
from joserfc import jwk


@contextmanager
def serve_keys(folder: Path) -> Generator[tuple[str, Path]]:
    """Serve a key set while the context lasts; yield the host with its port, and its authority."""
    key = jwk.ECKey.generate_key("P-256", {"kid": "issuer"})
    content = json.dumps({"keys": [key.as_dict(private=False)]}).encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            pass

    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "issuer-ca.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}", folder / "issuer-ca.pem"
        finally:
            server.shutdown()
            thread.join()
