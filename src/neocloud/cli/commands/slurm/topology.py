"""Options of `neo slurm cluster create` for the places of nodes: below switches, or in blocks."""

import re
from typing import Annotated

import typer

from neocloud.cli.output import JsonObject

PlaceOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="SET:FIRST-LAST=SWITCH/...",
        help="Switches above nodes, from the top to the leaf, for jobs on near nodes; repeatable.",
    ),
]
BlockOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="SET:FIRST-LAST=BLOCK",
        help="Block of nodes, in place of switches: a job that fits into one gets one; repeatable.",
    ),
]
BlockSizeOption = Annotated[
    list[int] | None,
    typer.Option(help="Nodes that Slurm plans with in a block, and in several; repeatable, e.g. 18 and 36."),
]

_PLACE = re.compile(
    r"(?P<set>[^:=]+):(?P<first>[0-9]{1,4})(-(?P<last>[0-9]{1,4}))?=(?P<path>[^=]+)", re.ASCII
)


def topology_of(
    place: PlaceOption = None, block: BlockOption = None, block_size: BlockSizeOption = None
) -> JsonObject:
    """Return the field of the spec; nothing without these options."""
    if place and block:
        raise typer.BadParameter(
            "nodes are below switches or in blocks; give one of them", param_hint="--block"
        )
    if block_size and not block:
        raise typer.BadParameter("needs --block", param_hint="--block-size")
    if block:
        placed = [_placed(text, "--block", "SET:FIRST-LAST=BLOCK", "worker:0-17=rack-1") for text in block]
        return {"topology": {"type": "BLOCK", "nodes": placed, "block_sizes": block_size or []}}
    shape, example = "SET:FIRST-LAST=SWITCH/...", "worker:0-17=spine-1/leaf-1"
    placed = [_placed(text, "--place", shape, example) for text in place or ()]
    return {"topology": {"type": "TREE", "nodes": placed}} if placed else {}


def _placed(text: str, option: str, shape: str, example: str) -> JsonObject:
    found = _PLACE.fullmatch(text)
    if found is None:
        raise typer.BadParameter(f'"{text}" is not {shape}; give e.g. {example}', param_hint=option)
    return {
        "node_set": found["set"],
        "first": int(found["first"]),
        "last": int(found["last"] or found["first"]),
        "path": found["path"].split("/"),
    }
