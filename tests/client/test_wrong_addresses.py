"""An address of the wrong kind, or without a token: the error names what to use."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import splitarrow
from helpers.pki import Pki
from splitarrow.errors import ConnectError, DeniedError, NotAPeerError, UsageError
from splitarrow.publication.storage import check_credentials

TABLE = pa.table({"n": [1]})
TOKENS = '[[tokens]]\nname = "anna"\ntoken = "a-long-token-of-anna"\ndatasets = ["*"]\n'


def test_a_control_uri_at_a_data_listener() -> None:
    with splitarrow.serve({"a": TABLE}) as server:
        address = server.listen[0].partition("?")[0]
        message = f"a data listener is at this port; use {address}/NAME, or the port of the control"
        with pytest.raises(ConnectError, match=message):
            splitarrow.connect(address.replace("tcp", "grpc"), connect_timeout=3)


def test_a_data_uri_at_a_control_plane() -> None:
    with splitarrow.serve({"a": TABLE}, control="grpc://127.0.0.1:0") as server:
        address = (server.control_uri or "").replace("grpc", "tcp")
        with pytest.raises(NotAPeerError, match=r"is a control plane, .* that begins with grpc"):
            splitarrow.open(f"{address}/a")
        http = (server.control_uri or "").replace("grpc", "http")
        with pytest.raises(NotAPeerError, match=r"not answer as an HTTP server; .* needs grpc://"):
            splitarrow.open(f"{http}/v1/datasets/a/data")


def test_plain_meets_tls(tmp_path: Path) -> None:
    pki = Pki(tmp_path)
    options: dict[str, Any] = {
        "tls_cert": pki.path("server-cert"),
        "tls_key": pki.path("server-key"),
    }
    with splitarrow.serve({"a": TABLE}, control="grpc+tls://127.0.0.1:0", **options) as server:
        address = server.control_uri or ""
        with pytest.raises(ConnectError, match=re.escape(f"requires TLS; use {address}")):
            splitarrow.connect(address.replace("+tls", ""), connect_timeout=3)


def test_a_missing_token_names_where_to_set_it(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(TOKENS)
    tokens.chmod(0o600)
    uri = "grpc://127.0.0.1:0"
    with splitarrow.serve({"a": TABLE}, control=uri, token_file=tokens) as server:
        with pytest.raises(DeniedError, match=r"pass a token: token=, .* SPLITARROW_TOKEN"):
            splitarrow.connect(server.control_uri or "")
        with pytest.raises(DeniedError, match=r"check the token: token=, .* SPLITARROW_TOKEN"):
            splitarrow.connect(server.control_uri or "", "another-long-token")


def test_nothing_is_explained_about_a_port_that_is_closed() -> None:
    with pytest.raises(ConnectError, match="the connection was refused"):
        splitarrow.connect("grpc://127.0.0.1:1")


@pytest.mark.parametrize(
    ("location", "variable"),
    [
        ("s3://lake/trips", "AWS_SKIP_SIGNATURE"),
        ("s3://lake/trips", "AWS_METADATA_ENDPOINT"),
        ("gs://lake/trips", "GOOGLE_APPLICATION_CREDENTIALS"),
        ("az://lake/trips", "AZURE_STORAGE_ACCOUNT_KEY"),
    ],
)
def test_object_stores_without_credentials(location: str, variable: str) -> None:
    with pytest.raises(UsageError, match=f"^{location}: no credentials in the environment; set "):
        check_credentials(location, {"HOME": "/nonexistent"})
    check_credentials(location, {variable: "true"})
    check_credentials("file:///data", {})


def test_a_dataset_in_a_store_without_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    with pytest.raises(UsageError, match="set AWS_ACCESS_KEY_ID"):
        splitarrow.serve({"trips": "s3://lake/trips"})
