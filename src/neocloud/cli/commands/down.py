"""`neo down`: stop the server, then all workloads; keep the state."""

from pathlib import Path
from typing import Annotated

import typer

from neocloud.cli.lazy import command_group
from neocloud.cli.machine.home import Home
from neocloud.cli.machine.server_process import run_server_verb, stop_server
from neocloud.cli.output import say
from neocloud.cli.progress import stage
from neocloud.cli.target import home_of
from neocloud.cli.terminal import echo

app = command_group()


@app.command()
def down(
    context: typer.Context,
    home: Annotated[
        Path | None, typer.Option(envvar="NEOCLOUD_HOME", help="State folder of the cloud.")
    ] = None,
) -> None:
    """Stop the cloud and everything that runs in it; keep its state.

    Clusters, file systems and billing history are still there after the next `neo up`. Running jobs are
    interrupted; Slurm requeues them.

    Examples:

      neo down
      neo down --home ~/cloud
    """
    place = Home(home_of(context, home))
    if not place.is_ours():
        say(f"There is no cloud in {place.path}; nothing to stop.")
        return
    with place.locked(lambda: say(f"Another neo is working on {place.path}; waiting for it.")):
        with stage("Stop the server"):
            was_running = stop_server(place)
        with stage("Stop workloads"):
            run_server_verb(place, place.options(), "--stop-workloads")
    echo("Neocloud is stopped." if was_running else "Neocloud was already stopped.")
    echo(f"Its state is kept in {place.path}. Start it again with `neo up`; remove it with `neo destroy`.")
