"""Find a cluster by its name or id."""

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from neocloud.cli.target import profile_of, project_of
from neocloud.client.connection import Client, connect
from neocloud.client.errors import ClientError
from neocloud.client.profiles import Profile
from neocloud.core import contract

SERVICE = "neocloud.slurm.v1.ClusterService"
STATE = contract.enum("neocloud.slurm.v1.ClusterStatus.State")

ProjectOption = Annotated[str, typer.Option("--project", help="Project id. Default: the profile's.")]
NameArgument = Annotated[str, typer.Argument(help="Name or id of the cluster.")]


@dataclass(frozen=True)
class Place:
    """Where a command works: a connection, and the project in it."""

    client: Client
    profile: Profile
    project: str


def open_place(context: typer.Context, project: str) -> Place:
    """Connect; the connection is closed when the command ends."""
    profile = profile_of(context)
    client = connect(profile)
    context.call_on_close(client.close)
    return Place(client, profile, project_of(profile, project))


def find_cluster(place: Place, name: str) -> Any:
    """Raises ClientError (NOT_FOUND) that lists the clusters there are."""
    found = look_for_cluster(place, name)
    if found is not None:
        return found
    known = sorted(cluster.metadata.name for cluster in list_clusters(place))
    raise ClientError(
        "NOT_FOUND",
        f"There is no Slurm cluster {name!r}",
        f"There are: {', '.join(known)}"
        if known
        else "Create one with `neo slurm cluster create NAME --workers 2`",
    )


def look_for_cluster(place: Place, name: str) -> Any | None:
    """The cluster of this name or id, or None."""
    try:
        if contract.is_id(name) and contract.id_prefix(name) == "slurmcluster":
            return place.client.call(f"{SERVICE}/Get", {"id": name})
        return place.client.call(f"{SERVICE}/GetByName", {"parent_id": place.project, "name": name})
    except ClientError as error:
        if error.code != "NOT_FOUND":
            raise
        return None


def list_clusters(place: Place) -> list[Any]:
    return list(place.client.list_all(f"{SERVICE}/List", {"parent_id": place.project}))


def state_of(cluster: Any) -> str:
    return STATE.Name(cluster.status.state)
