"""Show the steps of a change of a Slurm cluster until it has ended."""

from shlex import quote
from typing import TYPE_CHECKING, Any

from neocloud.cli.output import say
from neocloud.cli.progress import StepsView
from neocloud.cli.resources.lookup import CLUSTERS, ProjectClient, state_of
from neocloud.client.errors import ClientError

if TYPE_CHECKING:
    from neocloud.messages.nebius.common.v1 import Operation
    from neocloud.messages.neocloud.slurm.v1 import Cluster

CHANGE_TIMEOUT_SECONDS = 900.0
POLL_SECONDS = 0.2
MOVING = ("CREATING", "UPDATING", "STOPPED")  # a stopped one starts again with the cloud


def watch_operation(
    cloud: ProjectClient, operation: "Operation", title: str, *, is_change: bool = False
) -> StepsView:
    """Show the steps until the operation is finished. Raises ClientError if it failed."""
    view = StepsView(title, is_change=is_change)

    def show_steps(latest: "Operation") -> None:
        try:
            cluster = cloud.client.call(f"{CLUSTERS}/Get", {"id": operation.resource_id})
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
            cloud.client.wait(operation, on_progress=show_steps, timeout_seconds=CHANGE_TIMEOUT_SECONDS)
    except KeyboardInterrupt:
        say("The operation continues in the cloud. `neo slurm cluster list` shows its state.")
        raise
    return view


def watch_until_ready(cloud: ProjectClient, cluster: "Cluster") -> Any:
    """Show the steps of a cluster that another caller is creating or changing; return it once it is READY."""
    view = StepsView(f"Cluster {cluster.metadata.name} is {state_of(cluster)}")
    deadline = cloud.client.clock() + CHANGE_TIMEOUT_SECONDS
    if state_of(cluster) == "READY":
        return cluster
    with view.shown():
        while state_of(cluster) in MOVING and cloud.client.clock() < deadline:
            view.update(cluster.status.steps)
            cloud.client.sleep(POLL_SECONDS)
            cluster = cloud.client.call(f"{CLUSTERS}/Get", {"id": cluster.metadata.id})
        view.update(cluster.status.steps)
    if state_of(cluster) != "READY":
        name = quote(cluster.metadata.name)
        raise ClientError(
            "FAILED_PRECONDITION",
            f"Cluster {cluster.metadata.name} is {state_of(cluster)}",
            f"`neo slurm cluster get {name}` shows the reason; `neo slurm cluster delete {name}` removes it",
        )
    return cluster
