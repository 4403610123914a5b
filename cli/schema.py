"""``splitarrow schema``: show the schema of an input as a tree."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.text import Text
from rich.tree import Tree

from . import signals
from .connection import AsJson, ConnectTimeout, Token
from .fetch_options import StallTimeout, Transport
from .formatting import escape_text, shorten
from .inputs import Input, InputFormat, open_input
from .selection import parse_selection
from .tables import make_console
from .terminal import standard_output
from .tls_options import with_tls_options

if TYPE_CHECKING:
    from ..formats.arrow.schema_description import FieldDescription, SchemaDescription

_VALUE_WIDTH = 60


@with_tls_options
def schema(
    input: Input,
    input_format: InputFormat = None,
    transport: Transport = "auto",
    token: Token = None,
    connect_timeout: ConnectTimeout = 10.0,
    stall_timeout: StallTimeout = 30.0,
    as_json: AsJson = False,
) -> None:
    """Show the schema of an input.

    It has the types, nullability, dictionaries, extension types and custom metadata of all fields,
    and the byte order and the features that the data declares.

    [dim]splitarrow schema trips.arrow[/dim]
    """
    from ..formats.arrow.schema_description import describe_schema
    from ..formats.arrow.tensors.labels import is_tensor_content
    from .message_input import read_schema_metadata
    from .tensor_output import show_tensors

    source = open_input(
        input,
        parse_selection(),
        token=token,
        transport=transport,
        connect_timeout=connect_timeout,
        stall_timeout=stall_timeout,
        input_format=input_format,
        quiet=True,
    )
    with signals.raise_on_signals(), source as (name, _, open_stream), open_stream() as stream:
        if is_tensor_content(stream.schema):
            show_tensors(stream, as_json=as_json)
            return
        described = describe_schema(read_schema_metadata(stream))
        footer = {
            key.decode(errors="backslashreplace"): value.decode(errors="backslashreplace")
            for key, value in (stream.footer_metadata or {}).items()
        }
    with standard_output():
        if as_json:
            print(json.dumps({**asdict(described), "footer": footer}, ensure_ascii=False))
        else:
            make_console().print(_tree(name, described, footer))


def _tree(name: str, schema: SchemaDescription, footer: Mapping[str, str]) -> Tree:
    features = ", ".join(schema.features) or "no features"
    title = Text(escape_text(name), "bold")
    title.append(f"  {schema.metadata_version}, {schema.endianness}-endian, {features}", "dim")
    tree = Tree(title)
    _add_pairs(tree, schema.metadata, "metadata")
    _add_pairs(tree, footer, "footer")
    for field in schema.fields:
        _add_field(tree, field)
    return tree


def _add_field(tree: Tree, field: FieldDescription) -> None:
    line = Text(escape_text(field.name) or "''")
    line.append(f"  {escape_text(field.type)}", "cyan")
    if not field.nullable:
        line.append(" not null")
    if field.dictionary is not None:
        order = ", ordered" if field.dictionary.ordered else ""
        each = field.dictionary
        line.append(f"  dictionary {each.id} by {each.index_type}{order}", "dim")
    if field.extension is not None:
        line.append(f"  {escape_text(field.extension)}", "green")
    branch = tree.add(line)
    _add_pairs(branch, field.metadata, None)
    for child in field.children:
        _add_field(branch, child)


def _add_pairs(tree: Any, pairs: Mapping[str, str], heading: str | None) -> None:
    for key, value in pairs.items():
        prefix = "" if heading is None else f"{heading} "
        text = f"{prefix}{escape_text(key)} = {shorten(escape_text(value), _VALUE_WIDTH)}"
        tree.add(Text(text, "dim"))
