"""Encoded audio becomes tensors and sample rates, in both datasets and in all processes."""

from __future__ import annotations

import io
import subprocess
import sys
import wave
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from helpers.files import write_file
from splitarrow import errors
from splitarrow.pytorch import MapDataset, StreamDataset
from splitarrow.pytorch.decoding import decode_audio
from splitarrow.testing import Daemon

soundfile: Any = pytest.importorskip("soundfile")
torch: Any = import_module("torch")
data: Any = import_module("torch.utils.data")

pytestmark = [
    pytest.mark.torch,
    pytest.mark.usefixtures("plans_in_this_process"),
    pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning"),
]
ROWS = 60
RATES = (8000, 16000, 44100)


def make_samples(number: int) -> Any:
    """Return an array of samples and one or two channels of 16-bit integers."""
    shape = (50 + number % 7, 1 + number % 2)
    return np.random.default_rng(number).integers(-(2**15), 2**15, shape, np.int16)


def encode_wave(number: int, samples: Any = None) -> bytes:
    samples = make_samples(number) if samples is None else samples
    target = io.BytesIO()
    with wave.open(target, "wb") as file:
        file.setparams((samples.shape[1], 2, RATES[number % 3], 0, "NONE", ""))
        file.writeframes(samples.tobytes())
    return target.getvalue()


def encode(samples: Any, form: str, **options: Any) -> bytes:
    target = io.BytesIO()
    soundfile.write(target, samples, 16000, format=form, **options)
    return target.getvalue()


def is_sound(tensor: Any, number: int) -> bool:
    expected = torch.from_numpy(make_samples(number).T.copy()) / 2**15
    return tensor.dtype == torch.float32 and torch.equal(tensor, expected)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    files = [encode_wave(n) for n in range(ROWS)]
    same = [encode_wave(0, make_samples(7 * 2 * n)) for n in range(ROWS)]
    structs: Any = [{"bytes": each, "path": f"{n}.wav"} for n, each in enumerate(files)]
    lists: Any = [[files[n]] * (n % 3) for n in range(ROWS)]
    table = pa.table({"n": range(ROWS), "x": files, "same": same, "st": structs, "lists": lists})
    path = write_file(tmp_path_factory.mktemp("data") / "x.arrow", table, batch_rows=25)
    listen = ["tcp://127.0.0.1:0", "shm://"]
    with Daemon({"x": path}, listen=listen, control="grpc://127.0.0.1:0") as daemon:
        yield daemon


@pytest.mark.parametrize(
    "options", [{}, {"threads": 2}, {"shuffle": True, "transport": "tcp"}, {"transport": "flight"}]
)
def test_a_stream_has_lists_of_sounds_and_their_rates(
    server: Daemon, options: dict[str, Any]
) -> None:
    dataset = StreamDataset(server.control_uri, "x", batch_rows=16, decode="audio", **options)
    count = 0
    for batch in dataset:
        numbers = batch["n"].tolist()
        for name in ("x", "st.bytes"):
            assert all(map(is_sound, batch[name], numbers))
            assert batch[f"{name}.sample_rate"].tolist() == [RATES[n % 3] for n in numbers]
        inner = [n for n in numbers for _ in range(n % 3)]
        assert all(map(is_sound, batch["lists"], inner))
        assert batch["lists.sample_rate"].tolist() == [RATES[n % 3] for n in inner]
        count += len(numbers)
    assert count == ROWS


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_pass_sounds_and_rates(server: Daemon, method: str) -> None:
    dataset = StreamDataset(server.control_uri, "x", columns=["n", "x"], decode={"x": "audio"})
    loader = data.DataLoader(
        dataset, batch_size=None, num_workers=1, multiprocessing_context=method
    )
    (batch,) = loader
    assert all(map(is_sound, batch["x"], range(ROWS)))
    assert batch["x.sample_rate"].tolist() == [RATES[n % 3] for n in range(ROWS)]


def test_rows_have_their_rates(server: Daemon) -> None:
    dataset = MapDataset(server.control_uri, "x", decode="audio")
    row = dataset[8]
    assert is_sound(row["x"], 8)
    assert row["x.sample_rate"].item() == RATES[2]
    assert [len(row[name]) for name in ("lists", "lists.sample_rate")] == [2, 2]
    found = dataset.rows([3, 3, 1])
    assert all(map(is_sound, found["st.bytes"], (3, 3, 1)))
    assert found["st.bytes.sample_rate"].tolist() == [RATES[0], RATES[0], RATES[1]]
    columns = ["n", "same"]
    rows = MapDataset(server.control_uri, "x", columns=columns, decode={"same": "audio"})
    for batch in data.DataLoader(rows, batch_size=20):
        assert batch["same"].shape == (20, 1, 50)
        assert batch["same.sample_rate"].tolist() == [RATES[0]] * 20


def test_sounds_can_be_moved_and_decoded_beside_images(server: Daemon) -> None:
    dataset = StreamDataset(server.control_uri, "x", device="meta", decode={"x": "audio"})
    batch = next(iter(dataset))
    assert {each.device.type for each in (*batch["x"], batch["x.sample_rate"])} == {"meta"}
    assert batch["same"][0][:4] == b"RIFF"


def test_nulls_have_no_samples(tmp_path: Path) -> None:
    values = pa.array([encode_wave(0), None], pa.binary_view())
    path = write_file(tmp_path / "x.arrow", pa.table({"x": values}))
    with Daemon({"x": path}, control="grpc://127.0.0.1:0") as server:
        found = MapDataset(server.control_uri, "x", decode="audio", on_null="mask").rows([0, 1])
        assert found["x"][1].shape == (1, 0)
        assert found["x.sample_rate"].tolist() == [RATES[0], 0]
        assert found["x.mask"].tolist() == [True, False]


@pytest.mark.parametrize(
    ("form", "options", "error"),
    [
        ("WAV", {"subtype": "FLOAT"}, 0),
        ("WAV", {"subtype": "PCM_24"}, 1e-6),
        ("FLAC", {"subtype": "PCM_16"}, 1e-4),
        ("OGG", {"subtype": "VORBIS"}, 0.2),
        ("OGG", {"subtype": "OPUS"}, 0.3),
        ("MP3", {}, 0.2),
    ],
)
def test_each_format_is_decoded(form: str, options: dict[str, Any], error: float) -> None:
    tone = np.sin(np.arange(16000) / 10) / 2
    tones = np.stack([tone, -tone], axis=1).astype(np.float32)
    (found,), rates = decode_audio("x", pa.array([encode(tones, form, **options)]))
    assert rates.tolist() == [16000]
    assert found.is_contiguous()
    assert found.shape == (2, 16000)
    assert np.abs(found.numpy() - tones.T).max() <= error


def encode_mp3(samples: Any, mode: str) -> bytes:
    return encode(samples, "MP3", bitrate_mode=mode, compression_level=0.5)


def drop_length(mp3: bytes) -> bytes:
    """Return an MP3 without the first frame, which states the number of samples."""
    return mp3[mp3.index(mp3[:2], 10) :]


def test_incomplete_audio_is_an_error() -> None:
    noise = np.random.default_rng(0).normal(0, 0.1, 60_000)
    flac, mp3 = encode(noise, "FLAC"), encode_mp3(noise, "VARIABLE")
    unstated = drop_length(encode_mp3(np.append(np.zeros(60_000), noise), "VARIABLE"))
    wrong = [b"", b"no audio", encode_wave(0)[:30], flac[: len(flac) // 2], mp3[: len(mp3) // 2]]
    for value in (*wrong, unstated):
        with pytest.raises(errors.InvalidDataError, match="value 1 of the column 'x' cannot be"):
            decode_audio("x", pa.array([encode_wave(0), value]))


def test_an_mp3_of_a_constant_rate_need_not_state_its_length() -> None:
    noise = np.random.default_rng(0).normal(0, 0.1, 60_000)
    (found,), _ = decode_audio("x", pa.array([drop_length(encode_mp3(noise, "CONSTANT"))]))
    assert 60_000 <= found.shape[1] < 64_000


def test_the_error_names_what_to_install() -> None:
    program = (
        "import sys; sys.modules['soundfile'] = None\n"
        "from splitarrow.pytorch.tensors import TensorOptions\n"
        "TensorOptions(decode={'x': 'audio'})"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert "MissingExtraError: decode='audio' needs soundfile" in result.stderr
