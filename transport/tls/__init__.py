"""The scheme ``tcp+tls``: the frames of ``tcp`` over TLS 1.3."""
