"""Encoded images become tensors: with Pillow or torchvision, in both datasets, in all processes."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from helpers.files import write_file
from splitarrow import errors
from splitarrow.pytorch import MapDataset, StreamDataset
from splitarrow.pytorch.decoding import decode_images
from splitarrow.pytorch.tensors import TensorOptions
from splitarrow.testing import Daemon

pillow: Any = pytest.importorskip("PIL.Image")
torch: Any = import_module("torch")
data: Any = import_module("torch.utils.data")

pytestmark = [
    pytest.mark.torch,
    pytest.mark.usefixtures("plans_in_this_process"),
    pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning"),
]
ROWS = 60


def make_pixels(number: int, *, height: int = 4) -> Any:
    """Return an array of height, width and channels."""
    return np.random.default_rng(number).integers(0, 255, (height, 6, 3)).astype(np.uint8)


def encode(pixels: Any, form: str = "PNG", **options: Any) -> bytes:
    target = io.BytesIO()
    pillow.fromarray(pixels).save(target, form, **options)
    return target.getvalue()


def make_height(number: int) -> int:
    return 1 + number % 5


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    same = [encode(make_pixels(n)) for n in range(ROWS)]
    others = [encode(make_pixels(n, height=make_height(n))) for n in range(ROWS)]
    nested: Any = [{"bytes": value, "path": f"{n}.png"} for n, value in enumerate(others)]
    table = pa.table(
        {"n": range(ROWS), "same": same, "other": pa.array(others, pa.large_binary()), "st": nested}
    )
    path = write_file(tmp_path_factory.mktemp("data") / "x.arrow", table, batch_rows=25)
    listen = ["tcp://127.0.0.1:0", "shm://"]
    with Daemon({"x": path}, listen=listen, control="grpc://127.0.0.1:0") as daemon:
        yield daemon


def is_image(tensor: Any, number: int, **options: Any) -> bool:
    expected = torch.from_numpy(make_pixels(number, **options)).permute(2, 0, 1)
    return tensor.dtype == torch.uint8 and torch.equal(tensor, expected)


@pytest.mark.parametrize(
    "options", [{}, {"threads": 2}, {"shuffle": True, "transport": "tcp"}, {"transport": "flight"}]
)
def test_a_stream_has_lists_of_images(server: Daemon, options: dict[str, Any]) -> None:
    dataset = StreamDataset(server.control_uri, "x", batch_rows=16, decode="image", **options)
    count = 0
    for batch in dataset:
        assert batch["st.path"] == [f"{n}.png" for n in batch["n"].tolist()]
        for place, number in enumerate(batch["n"].tolist()):
            assert is_image(batch["same"][place], number)
            for name in ("other", "st.bytes"):
                assert is_image(batch[name][place], number, height=make_height(number))
            count += 1
    assert count == ROWS


def test_images_can_be_moved(server: Daemon) -> None:
    dataset = StreamDataset(server.control_uri, "x", device="meta", decode={"same": "image"})
    batch = next(iter(dataset))
    assert {image.device.type for image in batch["same"]} == {"meta"}
    assert batch["st.path"][0] == "0.png"


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_pass_many_images_with_few_descriptors(server: Daemon, method: str) -> None:
    dataset = StreamDataset(
        server.control_uri, "x", columns=["n", "other"], batch_rows=30, decode="image"
    )
    loader = data.DataLoader(
        dataset, batch_size=None, num_workers=1, multiprocessing_context=method
    )
    batches = list(loader)
    assert [n for batch in batches for n in batch["n"].tolist()] == list(range(ROWS))
    for batch in batches:
        pieces = {image.untyped_storage().data_ptr() for image in batch["other"]}
        assert len(pieces) == 1
        for number, image in zip(batch["n"].tolist(), batch["other"], strict=True):
            assert is_image(image, number, height=make_height(number))


def test_tensors_of_different_shapes_arrive_in_both_datasets(tmp_path: Path) -> None:
    shapes = [[n % 3, 2] for n in range(20)]
    values: Any = [{"data": [n] * (2 * a), "shape": [a, 2]} for n, (a, _) in enumerate(shapes)]
    kind = pa.struct([("data", pa.list_(pa.int32())), ("shape", pa.list_(pa.int32(), 2))])
    metadata = {
        "ARROW:extension:name": "arrow.variable_shape_tensor",
        "ARROW:extension:metadata": '{"permutation": [1, 0]}',
    }
    schema = pa.schema([pa.field("x", kind, nullable=False, metadata=metadata)])
    batch = pa.record_batch([pa.array(values, kind)], schema=schema)
    path = write_file(tmp_path / "x.arrow", pa.Table.from_batches([batch]), batch_rows=6)
    with Daemon({"x": path}, control="grpc://127.0.0.1:0") as server:
        stream = StreamDataset(server.control_uri, "x", batch_rows=20)
        (streamed,) = data.DataLoader(stream, batch_size=None, num_workers=1)
        rows = MapDataset(server.control_uri, "x")
        for found in (streamed["x"], rows.rows(range(20))["x"], [row["x"] for row in rows]):
            assert [list(tensor.T.shape) for tensor in found] == shapes
            assert all((tensor == n).all() for n, tensor in enumerate(found))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_stacks_images_of_one_size(server: Daemon, workers: int) -> None:
    dataset = MapDataset(server.control_uri, "x", columns=["n", "same"], decode={"same": "image"})
    assert is_image(dataset[-1]["same"], ROWS - 1)
    loader = data.DataLoader(dataset, batch_size=20, shuffle=True, num_workers=workers)
    for batch in loader:
        assert batch["same"].shape == (20, 3, 4, 6)
        assert is_image(batch["same"][7], batch["n"][7].item())


def test_only_the_columns_of_a_mapping_are_decoded(server: Daemon) -> None:
    dataset = MapDataset(server.control_uri, "x", decode={"st.bytes": "image"})
    item = dataset[8]
    assert is_image(item["st.bytes"], 8, height=make_height(8))
    assert item["same"] == encode(make_pixels(8))
    images = dataset.rows([3, 3, 1])["st.bytes"]
    assert [image.shape[1] for image in images] == [make_height(n) for n in (3, 3, 1)]


def test_nulls_are_images_without_pixels(tmp_path: Path) -> None:
    values = [encode(make_pixels(0)), None]
    path = write_file(tmp_path / "x.arrow", pa.table({"image": pa.array(values, pa.binary_view())}))
    with Daemon({"x": path}, control="grpc://127.0.0.1:0") as server:
        dataset = MapDataset(server.control_uri, "x", decode="image", on_null="mask")
        assert dataset[1]["image"].shape == (3, 0, 0)
        assert dataset.rows([0, 1])["image.mask"].tolist() == [True, False]
        with pytest.raises(errors.InvalidDataError, match="'image' has 1 nulls"):
            MapDataset(server.control_uri, "x", decode="image")[1]


def test_all_kinds_of_images_have_three_channels() -> None:
    color, gray = make_pixels(1), make_pixels(1)[:, :, 0]
    alpha = np.dstack([color, np.full(color.shape[:2], 255, np.uint8)])
    files = [encode(color, form) for form in ("PNG", "BMP", "TIFF")]
    files += [encode(alpha), encode(color, "WEBP", lossless=True)]
    for image in decode_images("x", pa.array(files)):
        assert is_image(image, 1)
    (found,) = decode_images("x", pa.array([encode(gray)]))
    assert torch.equal(found, torch.from_numpy(gray).expand(3, -1, -1))
    (found,) = decode_images("x", pa.array([encode(color, "JPEG", quality=95)]))
    assert found.shape == (3, 4, 6)
    for wrong in (b"", b"no image", encode(color)[:50], encode(gray.astype(np.uint16))):
        with pytest.raises(errors.InvalidDataError, match="value 1 of the column 'x' cannot be"):
            decode_images("x", pa.array([encode(color), wrong]))


@pytest.mark.skipif(find_spec("torchvision") is None, reason="torchvision is not installed")
def test_torchvision_decodes_what_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    files = pa.array([encode(make_pixels(1))])
    monkeypatch.setattr(pillow, "open", None)
    assert is_image(decode_images("x", files)[0], 1)


@pytest.mark.parametrize(
    ("decode", "message"),
    [
        ("video", "decode is 'video'; expected 'image', 'audio', or a mapping such as"),
        ({"same": "sound"}, "expected 'image', 'audio', or a mapping such as"),
        ({}, "expected 'image', 'audio', or a mapping such as"),
        ({"n": "image", "same": "image"}, "decode has n: not a binary column"),
    ],
)
def test_arguments_are_checked(server: Daemon, decode: Any, message: str) -> None:
    for make in (MapDataset, StreamDataset):
        with pytest.raises(errors.UsageError, match=message):
            make(server.control_uri, "x", decode=decode)


def test_a_dataset_without_binary_columns_is_refused(server: Daemon) -> None:
    with pytest.raises(errors.UsageError, match="decode is 'image', but no column has binary"):
        MapDataset(server.control_uri, "x", columns=["n"], decode="image")


def test_the_error_names_what_to_install() -> None:
    assert TensorOptions(decode="image").find_decoder("x") == "image"
    program = (
        "import sys; sys.modules['PIL'] = None\n"
        "from splitarrow.pytorch.tensors import TensorOptions\n"
        "TensorOptions(decode='image')"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert "MissingExtraError: decode='image' needs torchvision, or Pillow" in result.stderr
