"""Wait for a change of a cluster with its steps in view."""

from typing import Any

from neocloud.cli.commands.slurm.lookup import SERVICE, Place, state_of
from neocloud.cli.output import say
from neocloud.cli.progress import StepsView
from neocloud.client.errors import ClientError

CHANGE_TIMEOUT_SECONDS = 900.0
POLL_SECONDS = 0.2
MOVING = ("CREATING", "UPDATING", "STOPPED")  # a stopped one comes back with the cloud


def watch_operation(place: Place, operation: Any, title: str) -> StepsView:
    """Show the steps until the operation is finished. Raises ClientError when it failed."""
    view = StepsView(title)

    def look(latest: Any) -> None:
        try:
            cluster = place.client.call(f"{SERVICE}/Get", {"id": operation.resource_id})
        except ClientError as error:
            if error.code != "NOT_FOUND":
                raise
            return
        # Before the first step is at work, what is there are the steps of the change before, all in order.
        if (
            view.steps
            or latest.HasField("status")
            or any(step.outcome != "ok" for step in cluster.status.steps)
        ):
            view.update(cluster.status.steps)

    try:
        with view.shown():
            place.client.wait(operation, on_progress=look, timeout_seconds=CHANGE_TIMEOUT_SECONDS)
    except KeyboardInterrupt:
        say("It goes on without you. `neo slurm cluster list` shows how far it is.")
        raise
    return view


def watch_until_ready(place: Place, cluster: Any) -> Any:
    """Show the steps of a cluster that somebody else is making or changing; the cluster once it is READY."""
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
            f"`neo slurm cluster get {name}` says why; `neo slurm cluster delete {name}` removes it",
        )
    return cluster
