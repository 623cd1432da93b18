"""`neo fleet`: health of nodes. Each command is a module of its own, loaded when it is used."""

from collections.abc import Mapping
from typing import ClassVar

import typer

from neocloud.cli.lazy import Entry, LazyGroup

PLANNING = "Planning"


class FleetGroup(LazyGroup):
    package = "neocloud.cli.commands"
    entries: ClassVar[Mapping[str, Entry]] = {
        "simulate": Entry(
            "Simulate a fleet with faults: interruptions, useful time, spares.", PLANNING, "fleet_simulate"
        ),
    }


app = typer.Typer(
    cls=FleetGroup,
    rich_markup_mode="rich",
    add_completion=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def fleet() -> None:
    """Health of nodes: what a fault means, and what is done about it. These commands need no cloud.

    Examples:

      neo fleet simulate --gpus 1024
    """
