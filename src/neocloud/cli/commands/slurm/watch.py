"""Wait for a change of a cluster and show its steps."""

from typing import Any

from neocloud.cli.commands.slurm.lookup import SERVICE, Place, state_of
from neocloud.cli.output import say
from neocloud.cli.progress import StepsView
from neocloud.client.errors import ClientError

CHANGE_TIMEOUT_SECONDS = 900.0
POLL_SECONDS = 0.2
MOVING = ("CREATING", "UPDATING", "STOPPED")  # a stopped one starts again with the cloud


def watch_operation(place: Place, operation: Any, title: str) -> StepsView:
    """Show the steps until the operation is finished. Raises ClientError if it failed."""
    view = StepsView(title)

    def show_steps(latest: Any) -> None:
        try:
            cluster = place.client.call(f"{SERVICE}/Get", {"id": operation.resource_id})
        except ClientError as error:
            if error.code != "NOT_FOUND":
                raise
            return
        # Until the first step starts, the status holds the steps of the previous change, all of them ok.
        if (
            view.steps
            or latest.HasField("status")
            or any(step.outcome != "ok" for step in cluster.status.steps)
        ):
            view.update(cluster.status.steps)

    try:
        with view.shown():
            place.client.wait(operation, on_progress=show_steps, timeout_seconds=CHANGE_TIMEOUT_SECONDS)
    except KeyboardInterrupt:
        say("The operation continues in the cloud. `neo slurm cluster list` shows its state.")
        raise
    return view


def watch_until_ready(place: Place, cluster: Any) -> Any:
    """Show the steps of a cluster that another caller is creating or changing; return it once it is READY."""
    view = StepsView(f"Cluster {cluster.metadata.name} is {state_of(cluster)}")
    deadline = place.client.clock() + CHANGE_TIMEOUT_SECONDS
    if state_of(cluster) == "READY":
        return cluster
    with view.shown():
        while state_of(cluster) in MOVING and place.client.clock() < deadline:
            view.update(cluster.status.steps)
            place.client.sleep(POLL_SECONDS)
            cluster = place.client.call(f"{SERVICE}/Get", {"id": cluster.metadata.id})
        view.update(cluster.status.steps)
    if state_of(cluster) != "READY":
        name = cluster.metadata.name
        raise ClientError(
            "FAILED_PRECONDITION",
            f"Cluster {name} is {state_of(cluster)}",
            f"`neo slurm cluster get {name}` shows the reason; `neo slurm cluster delete {name}` removes it",
        )
    return cluster
