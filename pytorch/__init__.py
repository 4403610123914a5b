"""PyTorch: a dataset that delivers each row exactly once, as tensors.

The package needs the extra ``torch``::

    from splitarrow.pytorch import StreamDataset

    dataset = StreamDataset("grpc://host", "trips", batch_rows=4096, shuffle=True)
    loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=4)
    for batch in loader:
        ...

It is not called ``torch``: the repository root is the package, and a folder of that name would
shadow PyTorch wherever the root is on ``sys.path``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .dataset import StreamDataset
    from .metrics import EpochMetrics, LoaderMetrics, LoopMetrics, WorkerMetrics
    from .mixture import Mixture

_MODULES = {
    "EpochMetrics": "metrics",
    "LoaderMetrics": "metrics",
    "LoopMetrics": "metrics",
    "Mixture": "mixture",
    "StreamDataset": "dataset",
    "WorkerMetrics": "metrics",
}
__all__ = [
    "EpochMetrics",
    "LoaderMetrics",
    "LoopMetrics",
    "Mixture",
    "StreamDataset",
    "WorkerMetrics",
]


def __getattr__(name: str) -> Any:
    """Import a public name at its first use: parts of this package work without PyTorch."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULES[name]}", __name__), name)
