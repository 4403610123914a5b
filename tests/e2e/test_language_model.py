"""A small language model trains on packed, mixed data, is killed, and goes on with more ranks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from helpers.files import write_file
from helpers.waiting import wait_until
from splitarrow.testing import Daemon

pytestmark = pytest.mark.torch
STEPS, KILLED_AFTER, SAVED_EVERY = 24, 13, 5

TRAINING = """
import json, os, sys
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from splitarrow.pytorch import Mixture, Packed, StreamDataset

uri, folder, name, steps, rendezvous = sys.argv[1:]
rank, ranks, steps = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), int(steps)
torch.set_num_threads(1)
distributed.init_process_group("gloo", f"file://{rendezvous}", rank=rank, world_size=ranks)
torch.manual_seed(0)
parts = [
    StreamDataset(uri, dataset, columns="input_ids", batch_rows=4 // ranks, shuffle=True, seed=3)
    for dataset in ("counts", "words")
]
data = Packed(Mixture(list(zip(parts, [3, 1])), stop="repeat", seed=5), length=32)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(32, 32), nn.Embedding(32, 32)
        self.layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True)
        self.head = nn.Linear(32, 32)

    def forward(self, batch):
        segments = batch["segment_ids"]
        same = segments[:, :, None] == segments[:, None, :]
        later = torch.ones(32, 32, dtype=torch.bool).triu(1)
        mask = (~same | later).repeat_interleave(2, dim=0)
        hidden = self.tokens(batch["input_ids"]) + self.places(batch["position_ids"])
        return self.head(self.layer(hidden, src_mask=mask))


model = DistributedDataParallel(Model())
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
checkpoint, first = f"{folder}/checkpoint.pt", 0
if os.path.exists(checkpoint):
    saved = torch.load(checkpoint, weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    data.load_state_dict(saved["data"])
    first = saved["step"]
loader = torch.utils.data.DataLoader(data, batch_size=None, num_workers=1)
for step, batch in enumerate(loader, first):
    if step == steps:
        break
    inputs, segments = batch["input_ids"], batch["segment_ids"]
    follows = (segments[:, 1:] == segments[:, :-1]) & (segments[:, 1:] > 0)
    logits = model(batch)[:, :-1][follows]
    loss = nn.functional.cross_entropy(logits, inputs[:, 1:][follows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    packs = [row[mask].tolist() for row, mask in zip(inputs, segments > 0)]
    with open(f"{folder}/{name}.{rank}", "a") as log:
        log.write(json.dumps({"step": step, "packs": packs, "loss": loss.item()}) + "\\n")
    if rank == 0 and (step + 1) % 5 == 0:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        state.update(step=step + 1, data=data.state_dict(step + 1 - first))
        torch.save(state, checkpoint + ".new")
        os.replace(checkpoint + ".new", checkpoint)
distributed.destroy_process_group()
"""


def start(uri: str, folder: Path, name: str, ranks: int) -> list[subprocess.Popen[bytes]]:
    folder.mkdir(exist_ok=True)
    arguments = [uri, str(folder), name, str(STEPS), str(folder / f"{name}.rendezvous")]
    return [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", TRAINING, *arguments],
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(ranks)},
        )
        for rank in range(ranks)
    ]


def read_log(folder: Path, name: str) -> dict[int, list[dict[str, Any]]]:
    """Return what each rank wrote of each step."""
    found: dict[int, list[dict[str, Any]]] = {}
    for path in sorted(folder.glob(f"{name}.[0-9]")):
        for line in path.read_text().splitlines():
            entry = json.loads(line)
            found.setdefault(entry["step"], []).append(entry)
    return found


def packs_of(entries: list[dict[str, Any]]) -> Counter[tuple[int, ...]]:
    return Counter(tuple(pack) for entry in entries for pack in entry["packs"])


def test_a_killed_training_goes_on_with_twice_the_ranks(tmp_path: Path) -> None:
    counts = [[(start + n) % 20 for n in range(3 + start % 17)] for start in range(300)]
    words = [[20 + (start * n) % 11 for n in range(1 + start % 9)] for start in range(200)]
    paths: dict[str, Any] = {}
    for name, documents in (("counts", counts), ("words", words)):
        table = pa.table({"input_ids": pa.array(documents, pa.list_(pa.int32()))})
        paths[name] = write_file(tmp_path / f"{name}.arrow", table, batch_rows=25)
    with Daemon(paths, listen=["tcp://127.0.0.1:0"], control="grpc://127.0.0.1:0") as daemon:
        uri = daemon.control_uri
        whole = start(uri, tmp_path / "whole", "log", 1)
        (first,) = start(uri, tmp_path / "cut", "first", 1)
        wait_until(lambda: len(read_log(tmp_path / "cut", "first")) >= KILLED_AFTER, seconds=120)
        first.send_signal(signal.SIGKILL)
        first.wait()
        second = start(uri, tmp_path / "cut", "second", 2)
        assert [process.wait(120) for process in (*whole, *second)] == [0, 0, 0]
    expected = read_log(tmp_path / "whole", "log")
    assert sorted(expected) == list(range(STEPS))
    before, after = read_log(tmp_path / "cut", "first"), read_log(tmp_path / "cut", "second")
    saved = min(after)
    assert saved % SAVED_EVERY == 0
    assert sorted(after) == list(range(saved, STEPS))
    for step in range(STEPS):
        found = after[step] if step >= saved else before[step]
        assert len(found) == (2 if step >= saved else 1)
        assert packs_of(found) == packs_of(expected[step])
    losses = [sum(each["loss"] for each in entries) / len(entries) for entries in after.values()]
    assert losses[-1] < before[0][0]["loss"] * 0.7  # it learns
    assert losses[-1] == pytest.approx(expected[STEPS - 1][0]["loss"], rel=0.2)
