"""The page of a dataset: its first rows as text, within the rights and limits of a read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import splitarrow
from helpers.http_requests import request
from splitarrow.server.http import preview

TABLE = pa.table(
    {
        "n": pa.array(range(150)),
        "text": pa.array(["<script>alert(1)</script>", None, "x" * 500] * 50),
        "nested": pa.array([{"a": [1, None]}] * 150),
        "raw": pa.array([b"\x00\xff"] * 150),
        "late": pa.array([1 << 62] * 150, pa.timestamp("s")),
        "nested_late": pa.array([[1 << 62]] * 150, pa.list_(pa.timestamp("s"))),
    }
)


def load(server: splitarrow.Server, name: str, token: str | None = None) -> str:
    answer = request(server.http_uri or "", f"/datasets/{name}", token=token)
    assert answer.status == 200, answer
    return answer.text


def test_the_first_rows_are_shown_and_escaped() -> None:
    with splitarrow.serve({"a/b <c>": TABLE}, http="http://127.0.0.1:0") as server:
        text = load(server, "a%2Fb%20%3Cc%3E")
        assert "<td>99</td>" in text
        assert "<td>100</td>" not in text
        assert "<script>" not in text
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
        assert "<i>null</i>" in text
        assert "x" * 119 + "…" in text
        assert "{&#34;a&#34;: [1, null]}" in text
        assert "<td>00ff</td>" in text
        assert "<td>…</td>" in text
        assert f"{server.http_uri}/v1/datasets/a%2Fb%20%3Cc%3E/data" in text
        assert 'href="/datasets/a%2Fb%20%3Cc%3E"' in request(server.http_uri or "").text


def test_large_values_and_many_columns_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preview, "_MAX_COLUMN_BYTES", 1000)
    wide = pa.table({f"c{n}": ["y" * 600] * 2 for n in range(60)})
    with splitarrow.serve({"wide": wide}, http="http://127.0.0.1:0") as server:
        text = load(server, "wide")
    assert "yyy" not in text
    assert "10 more columns are not shown" in text


def test_tensors_and_unreadable_data_have_a_page(tmp_path: Path) -> None:
    path = tmp_path / "gone.arrow"
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, TABLE.schema) as writer:
        writer.write_table(TABLE)
    datasets = {"tensor": np.zeros((2, 3)), "gone": str(path)}
    with splitarrow.serve(datasets, http="http://127.0.0.1:0") as server:
        assert "tensors, which have no rows" in load(server, "tensor")
        path.unlink()
        answer = request(server.http_uri or "", "/datasets/gone")
        assert answer.status == 500
        assert str(tmp_path) not in answer.text


def test_the_page_needs_the_right_to_read(tmp_path: Path) -> None:
    token = "canary-of-a-token-0123456789"
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(f'[[tokens]]\nname = "r"\ntoken = "{token}"\ndatasets = ["mine"]\n')
    tokens.chmod(0o600)
    datasets = {"mine": TABLE, "other": TABLE}
    with splitarrow.serve(datasets, http="http://127.0.0.1:0", token_file=tokens) as server:
        assert request(server.http_uri or "", "/datasets/mine").status == 401
        assert "Authorization: Bearer TOKEN" in load(server, "mine", token)
        for name in ("other", "missing"):
            assert request(server.http_uri or "", f"/datasets/{name}", token=token).status == 403
