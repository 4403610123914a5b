"""The capabilities of lanes, by their names."""

from __future__ import annotations

import pytest

from splitarrow.transport.ucx.lanes import lanes_pin_memory, lanes_read_remotely


@pytest.mark.parametrize(
    ("names", "reads", "pins"),
    [
        ([], False, False),
        (["posix/memory", "tcp/eth0", "self/memory"], False, False),
        (["tcp/eth0", "cma/memory"], True, False),
        (["xpmem/memory"], True, False),
        (["rc_mlx5/mlx5_0:1"], True, True),
        (["ud_verbs/mlx5_0:1"], False, True),
        (["tcp/rc"], False, False),
    ],
)
def test_the_capabilities_of_lanes(names: list[str], reads: bool, pins: bool) -> None:
    assert lanes_read_remotely(names) is reads
    assert lanes_pin_memory(names) is pins
