"""Decoding the values of binary columns: encoded images and audio."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pyarrow as pa

from ..errors import InvalidDataError, MissingExtraError

_WIDE_MODES = ("I", "F")
"""The beginnings of the modes of Pillow whose channels have more than 8 bits."""
_LENGTH_MARKS = (b"Xing", b"Info", b"VBRI")
"""What an MP3 has that states its number of samples. Otherwise, libsndfile estimates it."""
_COMPLETE = 0.95
"""The least part of the samples or bytes of a whole file, as tags and estimates are not exact."""


def decode_images(name: str, array: Any) -> list[Any]:
    """Return the images of a binary column as tensors of uint8: channels (RGB), height, width.

    A null becomes an image without pixels. Raises `InvalidDataError` if a value is not an image
    that can be decoded, and `MissingExtraError` as `find_image_decoder` does.
    """
    torch: Any = import_module("torch")
    return [
        torch.empty((3, 0, 0), dtype=torch.uint8) if value is None else value
        for value in _decode_values(name, array, "an image", find_image_decoder())
    ]


def decode_audio(name: str, array: Any) -> tuple[list[Any], Any]:
    """Return the sound of a binary column as tensors of float32: channels, samples.

    The second result is a tensor of the sample rates, in hertz. A null becomes one channel without
    samples, and the rate 0. Raises `InvalidDataError` if a value is not a whole audio file that can
    be decoded, and `MissingExtraError` as `find_audio_decoder` does.
    """
    torch: Any = import_module("torch")
    samples: list[Any] = []
    rates: list[int] = []
    for value in _decode_values(name, array, "audio", find_audio_decoder()):
        tensor, rate = (torch.empty((1, 0)), 0) if value is None else value
        samples.append(tensor)
        rates.append(rate)
    return samples, torch.tensor(rates, dtype=torch.int64)


def _decode_values(
    name: str, array: Any, noun: str, decode: Callable[[pa.Buffer], Any]
) -> Iterator[Any]:
    """Yield the decoded values of a binary column, and None for a null."""
    for number, value in enumerate(array):
        try:
            result = decode(value.as_buffer()) if value.is_valid else None
        except Exception as error:  # the libraries raise many kinds for malformed files
            raise InvalidDataError(
                f"value {number} of the column {name!r} cannot be decoded as {noun}: {error}"
            ) from None
        yield result


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


@lru_cache(maxsize=1)
def find_audio_decoder() -> Callable[[pa.Buffer], tuple[Any, int]]:
    """Return the function that decodes audio with soundfile, to samples and their rate.

    Raises `MissingExtraError` if soundfile, or the libsndfile that it needs, is not installed.
    """
    try:
        soundfile: Any = import_module("soundfile")
    except (ImportError, OSError):
        raise MissingExtraError(
            "decode='audio' needs soundfile, with libsndfile: pip install soundfile"
        ) from None
    torch: Any = import_module("torch")

    def decode(data: pa.Buffer) -> tuple[Any, int]:
        source = io.BytesIO(data)
        with soundfile.SoundFile(source) as file:
            samples = file.read(dtype="float32", always_2d=True)
            if len(samples) < _COMPLETE * file.frames:
                raise ValueError(f"it has {len(samples)} of {file.frames} samples")
            if file.format == "MP3" and source.tell() < _COMPLETE * data.size:
                encoded = source.getvalue()
                if not any(mark in encoded for mark in _LENGTH_MARKS):
                    raise ValueError("it is an MP3 that does not state its length; encode it anew")
            return torch.from_numpy(samples.T).contiguous(), file.samplerate

    return decode


FINDERS: Mapping[str, Callable[[], Callable[[pa.Buffer], Any]]] = {
    "image": find_image_decoder,
    "audio": find_audio_decoder,
}
"""What the values of a binary column can be decoded as, and what finds the decoder."""
