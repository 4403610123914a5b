"""The reasons why a connection is not faster."""

from __future__ import annotations

from pathlib import Path

import pytest

from splitarrow.transport.ucx import lanes


def test_each_missing_lane_has_a_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    scope, adapters = tmp_path / "scope", tmp_path / "adapters"
    monkeypatch.delenv("UCX_TLS", raising=False)
    monkeypatch.setattr(lanes, "_PTRACE_SCOPE", scope)
    monkeypatch.setattr(lanes, "_CUDA_DRIVER", "libsplitarrow-missing.so")
    for module in (lanes, lanes):
        monkeypatch.setattr(module, "ADAPTERS_FOLDER", adapters)
    no_cma, no_rdma, no_cuda = lanes.list_performance_hints(["posix/memory"])
    assert "no cma: processes cannot read each other's memory here" in no_cma
    assert no_rdma == f"no RDMA: this host has no adapter ({adapters} is empty)"
    assert "libsplitarrow-missing.so is not installed" in no_cuda
    scope.write_text("0\n")
    assert lanes.list_performance_hints(["posix/memory"])[0] == no_cma
    scope.write_text("2\n")
    assert "ptrace_scope is 2," in lanes.list_performance_hints(["posix/memory"])[0]
    assert lanes.list_performance_hints(["cma/memory"]) == [no_rdma, no_cuda]
    monkeypatch.setattr(lanes, "_CUDA_DRIVER", None)  # this process
    for name in ("mlx5_1", "mlx5_0"):
        (adapters / name).mkdir(parents=True)
    (hint,) = lanes.list_performance_hints(["cma/memory", "tcp/eth0"])
    assert "although this host has mlx5_0, mlx5_1:" in hint
    assert lanes.list_performance_hints(["cma/memory", "rc_mlx5/mlx5_0:1"]) == []
    monkeypatch.setenv("UCX_TLS", "tcp")
    chosen, _ = lanes.list_performance_hints(["tcp/eth0"])
    assert chosen == "UCX_TLS=tcp is set, which excludes other lanes"
