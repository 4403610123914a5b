"""Decoding the values of binary columns: encoded images."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pyarrow as pa

from ..errors import InvalidDataError, MissingExtraError

DECODERS = ("image",)
"""What the values of a binary column can be decoded as."""
_WIDE_MODES = ("I", "F")
"""The beginnings of the modes of Pillow whose channels have more than 8 bits."""


def decode_images(name: str, array: Any) -> list[Any]:
    """Return the images of a binary column as tensors of uint8: channels (RGB), height, width.

    A null becomes an image without pixels. Raises `InvalidDataError` if a value is not an image
    that can be decoded, and `MissingExtraError` as `find_image_decoder` does.
    """
    torch: Any = import_module("torch")
    decode = find_image_decoder()
    images: list[Any] = []
    for number, value in enumerate(array):
        if not value.is_valid:
            images.append(torch.empty((3, 0, 0), dtype=torch.uint8))
            continue
        try:
            images.append(decode(value.as_buffer()))
        except Exception as error:  # Pillow raises many kinds for malformed images
            raise InvalidDataError(
                f"value {number} of the column {name!r} cannot be decoded as an image: {error}"
            ) from None
    return images


@lru_cache(maxsize=1)
def find_image_decoder() -> Callable[[pa.Buffer], Any]:
    """Return the function that decodes an image: that of torchvision, or else of Pillow.

    Raises `MissingExtraError` if Pillow, which torchvision needs, is not installed.
    """
    if find_spec("PIL") is None:
        raise MissingExtraError(
            "decode='image' needs torchvision, or Pillow, which is slower: pip install "
            "torchvision, or pip install pillow"
        )
    torch: Any = import_module("torch")
    numpy: Any = import_module("numpy")
    pillow: Any = import_module("PIL.Image")

    def decode_with_pillow(data: pa.Buffer) -> Any:
        with pillow.open(io.BytesIO(data)) as image:
            if image.mode.startswith(_WIDE_MODES):
                raise ValueError(f"its mode {image.mode} has more than 8 bits in a channel")
            pixels = numpy.array(image.convert("RGB"))
        return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()

    if find_spec("torchvision") is None:
        return decode_with_pillow
    vision: Any = import_module("torchvision.io")

    def decode(data: pa.Buffer) -> Any:
        """Decode with torchvision; with Pillow what it cannot, such as animations and TIFF."""
        try:
            encoded = torch.from_dlpack(pa.Array.from_buffers(pa.uint8(), data.size, [None, data]))
            image = vision.decode_image(encoded, vision.ImageReadMode.RGB)
        except RuntimeError:
            return decode_with_pillow(data)
        is_image = image.ndim == 3 and image.dtype == torch.uint8
        return image if is_image else decode_with_pillow(data)

    return decode
