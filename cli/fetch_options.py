"""The arguments and options of ``splitarrow fetch``."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from .completion import complete_name, complete_transport, complete_uri
from .connection import PANEL
from .options import flag, option

_SELECTION = "Selection"

Uri = Annotated[
    str,
    typer.Argument(
        help="The dataset: [cyan]grpc://host:8815/NAME[/cyan], [cyan]tcp://host/NAME[/cyan], or "
        "the URI that the server prints, in quotes. Or a control plane, "
        "[cyan]grpc://host:8815[/cyan], followed by NAME.",
        metavar="URI",
        autocompletion=complete_uri,
    ),
]
NameOrBodyUri = Annotated[
    str | None,
    typer.Argument(
        help="With a control plane, the name of the dataset. For the two streams of two servers, "
        "the URI with [cyan]stream=body[/cyan].",
        metavar="NAME",
        autocompletion=complete_name,
    ),
]
Output = Annotated[
    str | None,
    option(
        "-o",
        "--output",
        help="The file to write: FILE.arrow or .feather (Arrow IPC file), .arrows (IPC stream), "
        ".parquet, .vortex, .vortexs (Vortex IPC messages), .csv, .jsonl, or - for standard "
        "output; .npy or .tensor for tensors. Without it, the first rows are shown and all rows "
        "are counted.",
        metavar="FILE",
    ),
]
Format = Annotated[
    Literal["arrows", "csv", "jsonl", "arrow", "vortex", "auto"] | None,
    option(
        help="With -o -, the format of standard output: arrows, csv or jsonl. The suffix selects "
        "that of a file. Or the format on the network: arrow, vortex, or auto for the faster.",
        default="arrows",
    ),
]
Shred = Annotated[
    list[str] | None,
    option(
        help="A Variant column to shred in a Parquet file. The type is that of the first rows, or "
        'TYPE, as in [cyan]"event=struct<id: int64, tags: list<string>>"[/cyan]. May be given '
        "several times.",
        metavar="COLUMN[=TYPE]",
    ),
]
Columns = Annotated[
    list[str] | None,
    option(
        help="The columns to read, in this order, separated by commas. Put a name with a comma "
        "in double quotes. May be given several times.",
        default="all",
        metavar="A,B,…",
        panel=_SELECTION,
    ),
]
Filter = Annotated[
    str | None,
    option(
        help="The rows to read, as a condition in SQL: "
        "[cyan]\"delay > 60 and carrier = 'AA'\"[/cyan].",
        default="all",
        metavar="CONDITION",
        panel=_SELECTION,
    ),
]
Bbox = Annotated[
    str | None,
    option(
        help="The rows to read, by the bounding box of a geospatial column: "
        "[cyan]xmin,ymin,xmax,ymax[/cyan], after the name of the column if there are several, "
        "as in [cyan]geom,5,47,15,55[/cyan].",
        default="all",
        metavar="BOX",
        panel=_SELECTION,
    ),
]
Sql = Annotated[
    str | None,
    option(
        help="Fetch the result of a SELECT statement over the datasets of a control plane. DuckDB "
        "runs it here.",
        metavar="QUERY",
        panel=_SELECTION,
    ),
]
Limit = Annotated[
    int | None,
    option(
        min=0,
        help="The largest number of rows to read.",
        default="all",
        metavar="ROWS",
        panel=_SELECTION,
    ),
]
Batches = Annotated[
    str | None,
    option(
        help="The stored record batches to read: the first and the one after the last, counted "
        "from 0. In a Parquet file, the row groups.",
        default="all",
        metavar="FIRST:END",
        panel=_SELECTION,
    ),
]
Rows = Annotated[
    str | None,
    option(
        help="The stored rows to read: the first and the one after the last, counted from 0. They "
        "are selected before the filter and the limit.",
        default="all",
        metavar="FIRST:END",
        panel=_SELECTION,
    ),
]
Version = Annotated[
    str | None,
    option(
        help="The version to read, as [cyan]splitarrow info[/cyan] shows it.",
        default="current",
        metavar="VERSION",
        panel=_SELECTION,
    ),
]
Shards = Annotated[
    str | None,
    option(
        help="The shards to read, by their numbers: [cyan]0,2,5-8[/cyan].",
        default="all",
        metavar="0,2,5-8",
        panel=_SELECTION,
    ),
]
Ticket = Annotated[
    str | None,
    option(
        help="The ticket, if the URI has none. An unsigned ticket is the name of a dataset.",
        metavar="TICKET",
        panel=_SELECTION,
    ),
]
Transport = Annotated[
    str,
    option(
        help="With a control plane, the transport to use: [cyan]tcp[/cyan], "
        "[cyan]tcp+tls[/cyan], [cyan]shm[/cyan], [cyan]ucx[/cyan], [cyan]flight[/cyan] (DoGet of "
        "Arrow Flight), or [cyan]auto[/cyan] for the first that connects.",
        metavar="TRANSPORT",
        panel=PANEL,
        autocompletion=complete_transport,
    ),
]
Parallel = Annotated[
    int | None,
    option(
        min=1,
        help="With a control plane, the number of parts to read at a time.",
        default="4",
        metavar="N",
        panel=PANEL,
    ),
]
RequireTransport = Annotated[
    str | None,
    option(
        help="Fail unless the data comes over this transport: a scheme, or a lane of UCX such as "
        "[cyan]cma[/cyan] or [cyan]rc_mlx5[/cyan].",
        metavar="SCHEME|LANE",
        panel=PANEL,
    ),
]
BatchRows = Annotated[
    int | None,
    option(
        min=1,
        help="The largest number of rows in a record batch.",
        default="chosen by the server",
        metavar="ROWS",
        panel=PANEL,
    ),
]
Compression = Annotated[
    Literal["none", "lz4", "zstd", "auto"] | None,
    option(
        help="The compression on the network; auto compresses while that is faster. It does not "
        "apply to the file.",
        default="chosen by the server",
        panel=PANEL,
    ),
]
Validate = Annotated[
    Literal["strict", "full", "cheap", "off"] | None,
    option(
        help="Check values and their ranges (strict), values (full), only the sizes of buffers "
        "(cheap), or nothing (off).",
        default="full; cheap from a server on this host",
        panel=PANEL,
    ),
]
StallTimeout = Annotated[
    float,
    option(
        help="The longest time without data from the server, in seconds; 0 disables it.",
        metavar="SECONDS",
        panel=PANEL,
    ),
]
SummaryAsJson = Annotated[
    bool, flag("--json", help="Print the summary on standard output as one JSON object.")
]
