"""``splitarrow reload``: let a running server read its configuration again."""

from __future__ import annotations

import json
from typing import Any

from .connection import AsJson, ConnectTimeout, ControlUri, Token, open_single_client
from .formatting import escape_text
from .terminal import print_message, standard_output
from .tls_options import with_tls_options


@with_tls_options
def reload(
    uri: ControlUri,
    token: Token = None,
    connect_timeout: ConnectTimeout = 10.0,
    as_json: AsJson = False,
) -> None:
    """Let a server read its configuration again.

    It applies the datasets, tokens, keys, certificates and log level. Running streams continue. If
    anything is wrong, it keeps the old configuration. The token needs the right to write every
    dataset. SIGHUP does the same.

    [dim]splitarrow reload grpc://host:8815[/dim]
    """
    with open_single_client(uri, token, connect_timeout) as client:
        report: dict[str, Any] = json.loads(client.act("reload"))
    with standard_output():
        if as_json:
            print(json.dumps(report, ensure_ascii=False))
        else:
            print(f"reloaded{_describe_changes(report)}")
    if report.get("restart") and not as_json:
        names = escape_text(", ".join(report["restart"]))
        print_message(f"splitarrow: changed, but applied on a restart only: {names}")


def _describe_changes(report: dict[str, Any]) -> str:
    parts = [
        f"{verb} {escape_text(', '.join(map(str, report[verb])))}"
        for verb in ("added", "removed", "changed")
        if report.get(verb)
    ]
    return f": {'; '.join(parts)}" if parts else ""
