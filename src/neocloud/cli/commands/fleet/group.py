"""`neo fleet`: health of nodes. Each command is a module of its own, loaded when it is used."""

from collections.abc import Mapping
from typing import ClassVar

import typer

from neocloud.cli.lazy import Entry, LazyGroup

NODES, CHECKS, FAULTS, PLANNING = "Nodes", "Checks", "Faults", "Planning"


class FleetGroup(LazyGroup):
    package = "neocloud.cli.commands.fleet"
    entries: ClassVar[Mapping[str, Entry]] = {
        "node": Entry("See the health of nodes, drain and release them.", NODES, "node"),
        "drain": Entry("Keep new work from a host or a worker.", NODES, "node:drain_app"),
        "release": Entry("End your own drain of a host or a worker.", NODES, "node:release_app"),
        "top": Entry("Show all nodes, states and jobs on one screen.", NODES, "top"),
        "maintenance": Entry("Announce maintenance of nodes, list and end it.", NODES, "maintenance"),
        "break-fix": Entry("Ask for repairs of nodes, and see what became of them.", NODES, "break_fix"),
        "incidents": Entry(
            "See why nodes were drained, what was tried, and when it ended.", NODES, "incidents"
        ),
        "reliability": Entry(
            "Show how often workers fail, and how soon spares take over.",
            NODES,
            "incidents:reliability_app",
        ),
        "explain": Entry(
            "Explain a fault: what it is, what is done about it and why.", FAULTS, "explain_log"
        ),
        "conflicts": Entry(
            "Show where the sources of the fault policy disagree.", FAULTS, "explain:conflicts_app"
        ),
        "check": Entry("Check this host once: GPUs, links, memory, disks, kernel log.", CHECKS, "check"),
        "checks": Entry(
            "See active checks of nodes: what they found, and which nodes they cover.", CHECKS, "checks"
        ),
        "verdict": Entry("See failing verdicts of checks, and say which were right.", CHECKS, "verdict"),
        "inventory": Entry(
            "Show the parts of this host with serial numbers and firmware.", CHECKS, "inventory"
        ),
        "agent": Entry("Check this host in intervals, and write what changes.", CHECKS, "check:agent_app"),
        "scorecard": Entry(
            "Rate this cloud by the criteria of ClusterMAX, with the evidence for each.",
            PLANNING,
            "scorecard",
        ),
        "simulate": Entry(
            "Simulate a fleet with faults: interruptions, useful time, spares.", PLANNING, "simulate"
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
    """See the health of nodes, check this host, explain faults, simulate a fleet.

    `explain`, `conflicts`, `check`, `inventory`, `agent` and `simulate` need no cloud, nor does
    `scorecard --no-cloud`; all others do.

    Examples:

      neo fleet node list
      neo fleet top
      neo fleet explain xid 79
      neo fleet conflicts
      neo fleet check
      neo fleet checks nodes
      neo fleet verdict list
      neo fleet simulate --gpus 1024
    """
