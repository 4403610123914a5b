"""PyTorch: datasets that deliver rows as tensors, each once in an epoch or by its number.

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
    from .map_dataset import MapDataset
    from .metrics import EpochMetrics, LoaderMetrics, LoopMetrics, WorkerMetrics
    from .mixture import Mixture
    from .packed import Packed

__all__ = [
    "EpochMetrics",
    "LoaderMetrics",
    "LoopMetrics",
    "MapDataset",
    "Mixture",
    "Packed",
    "StreamDataset",
    "WorkerMetrics",
]
_MODULES = {
    "EpochMetrics": "metrics",
    "LoaderMetrics": "metrics",
    "LoopMetrics": "metrics",
    "MapDataset": "map_dataset",
    "Mixture": "mixture",
    "Packed": "packed",
    "StreamDataset": "dataset",
    "WorkerMetrics": "metrics",
}


def __getattr__(name: str) -> Any:
    """Import a public name at its first use: parts of this package work without PyTorch."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULES[name]}", __name__), name)
