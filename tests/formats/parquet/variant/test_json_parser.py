"""JSON texts that are parsed together, beside a parser of single texts."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from helpers.variant_encoding import encode
from splitarrow import variant
from splitarrow.errors import InvalidDataError
from splitarrow.formats.parquet.variant.functions import parse_single
from splitarrow.formats.parquet.variant.json_parser import parse_plain

SCALARS = [
    *("0", "-0", "7", "-128", "32768", "2147483648", "123456789012345678", "-0.0", "0.50"),
    *(
        "-12.345",
        "9999999999.25",
        "0.00000000000001",
        "true",
        "false",
        "null",
        '""',
        '"a"',
        '"é€😀"',
    ),
    *("1e5", "1.5E-3", "12345678901234567890", "0.1234567890123456789", '"\\n"', '"\\u00e9"'),
]
CHARACTERS = '{}[]:,"\\ 01.-eEx\n\t\x01truefalsn\x7fé'


def make_text(source: random.Random, depth: int = 0) -> str:
    """Return a JSON text with blanks in any place."""

    def blank() -> str:
        return source.choice(["", "", "", " ", "\n", "\t\r "])

    kind = source.random()
    if kind < 0.3 or depth > 4:
        return f"{blank()}{source.choice(SCALARS)}{blank()}"
    items = [make_text(source, depth + 1) for _ in range(source.randint(0, 4))]
    if kind < 0.65:
        return f"[{','.join(items) or blank()}]"
    names = [source.choice(["a", "b", "c1", "é", "", "long name"]) for _ in items]
    fields = [f'{blank()}"{name}"{blank()}:{item}' for name, item in zip(names, items, strict=True)]
    return f"{{{','.join(fields) or blank()}}}"


def damage(source: random.Random, text: str) -> str:
    """Return a text with up to two changes."""
    for _ in range(source.choice([0, 0, 1, 2])):
        at = source.randrange(len(text) + 1)
        added = source.choice(CHARACTERS) if source.random() < 0.7 else ""
        text = text[:at] + added + text[at + source.randint(0, 1) :]
    return text


def encode_alone(text: str) -> Any:
    """Return a text as a Variant, by the parser of single texts; None if it is refused."""
    try:
        (value,) = parse_single(pa.array([text]), [0])
    except InvalidDataError:
        return None
    return encode(value)


def test_both_parsers_agree_on_drawn_texts() -> None:
    source = random.Random(3)
    texts = [damage(source, make_text(source)) for _ in range(2500)]
    taken, metadata, value = parse_plain(pa.array(texts))
    expected = [encode_alone(text) for text in texts]
    plain = [pair for pair, is_taken in zip(expected, taken, strict=True) if is_taken]
    assert list(zip(metadata.to_pylist(), value.to_pylist(), strict=True)) == plain
    assert len(plain) > 600
    valid = [text for text, pair in zip(texts, expected, strict=True) if pair is not None]
    found = variant.from_json(pa.array(valid))
    pairs = [(row["metadata"], row["value"]) for row in found.to_pylist()]
    assert pairs == [pair for pair in expected if pair is not None]


@pytest.mark.parametrize(
    ("text", "is_plain"),
    [
        ('{"a":[1,-2.50,{"b":null}],"c":"x"}', True),
        (" [ ] ", True),
        ("-0", True),
        ("123456789012345678", True),
        ("1234567890123456789", False),
        ("1e2", False),
        (r'"\u0041"', False),
        ('"a\tb"', False),
        ('{"a":1,"a":2}', False),
        ('{"a":{"a":1},"b":{"a":2}}', True),
        ("[" * 150 + "]" * 150, True),
        ("[" * 250 + "]" * 250, False),
        *((text, False) for text in ("", " ", "[1,]", "{,}", "[1 2]", "1 2", "[1}", "{1:2}", '"a')),
        *(
            (text, False)
            for text in ('{"a"}', '{"a":}', '{"a":1 "b":2}', "]", "}{", "01", "+1", "1.")
        ),
        *(
            (text, False)
            for text in (".5", "-", "nul", "truex", "[,1]", "[1,,2]", ",1", "1,", ":1")
        ),
        *(
            (text, False)
            for text in ('{"a"::1}', '{"a",1}', '["a":1]', "\x0c1", "\ufeff1", "1\x00")
        ),
    ],
)
def test_plain_texts_are_taken(text: str, is_plain: bool) -> None:
    taken, metadata, value = parse_plain(pa.array(["7", text, "[8]"]))
    assert taken.tolist() == [True, is_plain, True]
    assert len(metadata) == len(value) == 2 + is_plain


def test_texts_without_characters_and_nulls_are_taken_apart() -> None:
    for texts in ([], [""], ["", ""], [None], [None, "", "1"]):
        taken, metadata, _ = parse_plain(pa.array(texts, pa.string()))
        assert taken.tolist() == [text != "" for text in texts]
        assert len(metadata) == taken.sum()
    sliced = pa.array(["x", '{"a":1}', "[2]", "y"])[1:3]
    assert variant.to_json(variant.from_json(sliced)).to_pylist() == ['{"a":1}', "[2]"]


def test_the_first_wrong_row_is_named() -> None:
    texts = pa.array(['{"a":1}', r'"\n"', "[1", "2", "]"])
    with pytest.raises(InvalidDataError, match="row 2 is not JSON"):
        variant.from_json(texts)
