"""Find models and deployments by name or id, or say which ones there are."""

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from neocloud.cli.target import profile_of, project_of
from neocloud.client.connection import Client, connect
from neocloud.client.errors import ClientError
from neocloud.client.profiles import Profile
from neocloud.core import contract

MODELS = "neocloud.inference.v1.ModelService"
DEPLOYMENTS = "neocloud.inference.v1.DeploymentService"
CLUSTERS = "neocloud.slurm.v1.ClusterService"
MODEL_STATE = contract.enum("neocloud.inference.v1.ModelStatus.State")
DEPLOYMENT_STATE = contract.enum("neocloud.inference.v1.DeploymentStatus.State")

ProjectOption = Annotated[str, typer.Option("--project", help="Project id. Default: the profile's.")]

_WORDS = {MODELS: "model", DEPLOYMENTS: "deployment", CLUSTERS: "Slurm cluster"}
_HOW = {
    MODELS: "Add one with `neo model add NAME FOLDER`",
    DEPLOYMENTS: "Serve a model with `neo deploy MODEL`",
    CLUSTERS: "Create one with `neo slurm cluster create NAME --workers 2`",
}


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


def list_all(place: Place, service: str) -> list[Any]:
    return list(place.client.list_all(f"{service}/List", {"parent_id": place.project}))


def find(place: Place, service: str, name: str) -> Any:
    """The one of this name or id. Raises ClientError (NOT_FOUND) that lists those there are."""
    found = look_for(place, service, name)
    if found is not None:
        return found
    known = sorted(item.metadata.name for item in list_all(place, service))
    hint = f"There are: {', '.join(known)}" if known else _HOW[service]
    raise ClientError("NOT_FOUND", f"There is no {_WORDS[service]} {name!r}", hint)


def look_for(place: Place, service: str, name: str) -> Any | None:
    for verb, request in (
        ("GetByName", {"parent_id": place.project, "name": name}),
        *((("Get", {"id": name}),) if contract.is_id(name) else ()),
    ):
        try:
            return place.client.call(f"{service}/{verb}", request)
        except ClientError as error:
            if error.code not in ("NOT_FOUND", "PERMISSION_DENIED", "INVALID_ARGUMENT"):
                raise
    return None
