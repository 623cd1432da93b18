"""Find resources by name or id for the hand-written commands, and the project they are in."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Any

import typer

from neocloud.cli.lazy import Options
from neocloud.cli.resources.noun import kebab
from neocloud.cli.resources.products import PRODUCTS
from neocloud.cli.resources.search import find, kind_of
from neocloud.cli.target import client_of, profile_of, project_of
from neocloud.client.connection import Client, connect
from neocloud.client.errors import ClientError
from neocloud.client.profiles import Profile
from neocloud.core import contract
from neocloud.core.contract.registry import ROUTING_CODE

CLUSTERS = "neocloud.slurm.v1.ClusterService"
INSTANCES = "nebius.compute.v1.InstanceService"
MODELS = "neocloud.inference.v1.ModelService"
DEPLOYMENTS = "neocloud.inference.v1.DeploymentService"
TUNING_JOBS = "neocloud.tuning.v1.FineTuningJobService"
ENDPOINTS = "nebius.ai.v1.EndpointService"
AI_JOBS = "nebius.ai.v1.JobService"
GROUPS = "nebius.iam.v1.GroupService"
PROJECTS = "nebius.iam.v2.ProjectService"
TENANTS = "nebius.iam.v2.TenantService"
SUBNETS = "nebius.vpc.v1.SubnetService"

OF_TENANT = frozenset({GROUPS, PROJECTS})
"""Services whose resources belong to the tenant."""
DEFAULT_SUBNET = "default-subnet"
"""The name of the subnet that comes with a project, without the suffix that the cloud adds."""

_NOT_IN_IDS = frozenset({"iam", "billing", "tuning"})
"""Products that the ids of their resources do not name."""
FEW_NAMES = 5
CLOSEST_NAMES = 3

ProjectOption = Annotated[
    str,
    typer.Option(
        "--project",
        "--parent-id",
        help="Id or name of the project. Default: the profile's.",
        show_default=False,
    ),
]


def names_of(*services: str) -> Callable[[typer.Context, str], list[str]]:
    """Return what completes a name in a shell: the names of these services' resources in the project."""

    def complete(context: typer.Context, incomplete: str) -> list[str]:
        try:
            profile = profile_of(context)
            with connect(profile) as client:
                cloud = ProjectClient(client, profile, project_of(profile))
                page = find(client, services, parent_ids=[cloud.project], name_prefix=incomplete)
                found = [item.name for item in page.items] if page is not None else _listed(cloud, services)
        except ClientError:
            return []
        return [name for name in dict.fromkeys(found) if name and name.startswith(incomplete)]

    return complete


def _listed(cloud: "ProjectClient", services: Sequence[str]) -> list[str]:
    """Return the names for a server that has no search."""
    return [item.metadata.name for service in services for item in cloud.list_all(service)]


ClusterArgument = Annotated[
    str, typer.Argument(help="Name or id of the cluster.", autocompletion=names_of(CLUSTERS))
]


_NOT_FOUND = frozenset({"NOT_FOUND"})


@dataclass(frozen=True)
class _Kind:
    label: str
    hint: str
    """The next step if there is none."""
    not_found_codes: frozenset[str] = _NOT_FOUND
    """Error codes that mean that there is no such resource."""


NOT_OFFERED = frozenset({"PERMISSION_DENIED", "UNIMPLEMENTED"})
"""Codes of kinds that the caller may not read, or that this cloud does not serve."""
_HIDDEN = frozenset({"NOT_FOUND", "PERMISSION_DENIED", "INVALID_ARGUMENT"})
_KINDS = {
    CLUSTERS: _Kind("Slurm cluster", "Create one with `neo slurm cluster create NAME --workers 2`"),
    INSTANCES: _Kind("instance", "Create one with `neo compute instance create NAME`"),
    MODELS: _Kind("model", "Add one with `neo model add NAME FOLDER`", _HIDDEN),
    DEPLOYMENTS: _Kind("deployment", "Serve a model with `neo deploy MODEL`", _HIDDEN),
    ENDPOINTS: _Kind("endpoint", "Create one with `neo ai endpoint create NAME --image IMAGE --port 8000`"),
    AI_JOBS: _Kind("job", "Create one with `neo ai job create NAME --image IMAGE`"),
}


@dataclass(frozen=True)
class ProjectClient:
    """A connection to a cloud, and the project that a command works in."""

    client: Client
    profile: Profile
    project: str

    def list_all(self, service: str) -> list[Any]:
        return list(self.client.list_all(f"{service}/List", {"parent_id": self.project}))

    def find(self, service: str, name: str) -> Any:
        """Return the resource of this name or id. Raises ClientError that lists the known ones."""
        found = self.find_optional(service, name)
        if found is not None:
            return found
        known = [item.metadata.name or item.metadata.id for item in self.list_all(service)]
        kind = _KINDS[service]
        hint = closest_names(name, known) or kind.hint
        raise ClientError("NOT_FOUND", f"There is no {kind.label} {name!r}", hint)

    def find_optional(self, service: str, name: str) -> Any | None:
        """Return the resource of this name or id, or None."""
        not_found_codes = _KINDS[service].not_found_codes if service in _KINDS else _NOT_FOUND
        try:
            if contract.is_id(name) and is_id_of(service, name):
                return self.client.call(f"{service}/Get", {"id": name})
            return self.client.call(f"{service}/GetByName", {"parent_id": self.project, "name": name})
        except ClientError as error:
            if error.code not in not_found_codes:
                raise
            return None


def find_in(
    cloud: ProjectClient, services: Sequence[str], name: str
) -> tuple[dict[str, str], list[ClientError]]:
    """Return the ids of the resources of this name or id by service, and the refusals of what the caller may
    not read.

    Raises ClientError if all kinds are refused.
    """
    found, services_to_ask = _search(cloud, services, name)
    refusals: list[ClientError] = []
    for service in services_to_ask:
        try:
            resource = cloud.find_optional(service, name)
        except ClientError as error:
            if error.code not in NOT_OFFERED:
                raise
            refusals.append(error)
        else:
            found |= {} if resource is None else {service: resource.metadata.id}
    if len(refusals) == len(services):
        raise refusals[0]
    return found, [error for error in refusals if error.code == "PERMISSION_DENIED"]


def _search(cloud: ProjectClient, services: Sequence[str], name: str) -> tuple[dict[str, str], Sequence[str]]:
    """Return the ids that the search finds by service, and the services that it does not answer for: those of
    kinds that the caller may not read, whose refusals say why, and all for a server that has no search."""
    if not name:
        return {}, services
    is_id = contract.is_id(name) and any(is_id_of(service, name) for service in services)
    conditions = {"ids": [name]} if is_id else {"name": name, "parent_ids": [cloud.project]}
    page = find(cloud.client, services, **conditions)
    if page is None:
        return {}, services
    by_kind = {kind_of(service): service for service in services}
    found = {by_kind[item.kind]: item.id for item in page.items if item.kind in by_kind}
    return found, () if found else [by_kind[kind] for kind in page.unreadable_kinds if kind in by_kind]


def list_in(
    cloud: ProjectClient, kinds: Sequence[tuple[str, str]]
) -> tuple[Mapping[str, Sequence[Any]], Sequence[str]]:
    """Return the resources by service, and the labels of the kinds that the caller may not list.

    `kinds` holds labels and services; this cloud need not serve all. Raises ClientError if all are refused.
    """
    found: dict[str, Sequence[Any]] = {}
    labels: list[str] = []
    refusals: list[ClientError] = []
    for label, service in kinds:
        try:
            found[service] = cloud.list_all(service)
        except ClientError as error:
            if error.code not in NOT_OFFERED:
                raise
            if error.code == "PERMISSION_DENIED":
                labels.append(label)
                refusals.append(error)
    if refusals and not found:
        raise refusals[0]
    return found, labels


def refusal_note(labels: Sequence[str]) -> str:
    """Return what to tell a caller who may not list these kinds."""
    return f"You may not list {plural(labels, 'or')} here."


def plural(labels: Sequence[str], conjunction: str) -> str:
    """ "instances, disks or models"."""
    *others, last = [f"{label}s" for label in labels]
    return f"{', '.join(others)} {conjunction} {last}" if others else last


def not_found(
    cloud: ProjectClient, services: Iterable[str], name: str, message: str, refusals: Sequence[ClientError]
) -> ClientError:
    """Return the error for a name that none of the services has; the refusals say where it may still be."""
    reasons = " ".join(dict.fromkeys(str(error) for error in refusals))
    if reasons:
        return ClientError("NOT_FOUND", message, f"It may be of a kind that you may not read: {reasons}")
    page = find(cloud.client, services, parent_ids=[cloud.project])
    if page is not None:
        names = {item.name for item in page.items} - {""}
    else:
        found, _ = list_in(cloud, [(service, service) for service in services])
        names = {item.metadata.name for items in found.values() for item in items} - {""}
    return ClientError("NOT_FOUND", message, closest_names(name, names) or "`neo ps` shows what runs")


def id_of(cloud: ProjectClient, service: str, named: str) -> str:
    """Return the id of a resource; an id is returned unchanged.

    Names may have the form of ids, such as `before-upgrade` and `lab-e0012`, so a name is looked up first.
    """
    if not named or is_id_of(service, named):
        return named
    prefix, _, rest = named.partition("-")
    has_prefix, has_code = prefix == id_prefix_of(service), rest.startswith(ROUTING_CODE)
    parent = cloud.profile.tenant_id if service in OF_TENANT else cloud.project
    try:
        return cloud.client.call(f"{service}/GetByName", {"parent_id": parent, "name": named}).metadata.id
    except ClientError as error:
        is_default = error.code == "NOT_FOUND" and service == SUBNETS and named == DEFAULT_SUBNET
        defaults = _default_subnets(cloud) if is_default else []
        if len(defaults) == 1:
            return defaults[0].metadata.id
        if contract.is_id(named) and (has_prefix or has_code):
            return named  # an id of another kind, such as a user's, or one that the cloud refuses
        if error.code != "NOT_FOUND":
            raise
        words = kebab(service.rpartition(".")[2].removesuffix("Service")).replace("-", " ")
        hint = closest_names(named, [item.metadata.name for item in defaults])
        raise ClientError(
            "NOT_FOUND",
            f"There is no {words} {named!r}",
            hint or f"Check the name, or give an id: `{_list_command(service)}` shows both",
        ) from error


def _list_command(service: str) -> str:
    """Return the command that lists the resources of a service."""
    for product, each in PRODUCTS.items():
        for noun in each.nouns:
            if noun.service == service:
                return f"neo {product} {noun.name} list"
    return "neo slurm cluster list"


def is_id_of(service: str, named: str) -> bool:
    """Return whether it begins as ids of the service's resources do; most names of their form do not."""
    return named.startswith(f"{id_prefix_of(service)}-{ROUTING_CODE}")


def _default_subnets(cloud: ProjectClient) -> list[Any]:
    return [item for item in cloud.list_all(SUBNETS) if item.metadata.name.startswith(f"{DEFAULT_SUBNET}-")]


def id_prefix_of(service: str) -> str:
    """Return the type in the ids of a service's resources: "computedisk" for those of DiskService."""
    package, _, name = service.removesuffix("Service").rpartition(".")
    product = package.split(".")[1]
    return f"{'' if product in _NOT_IN_IDS else product}{name.lower()}"


def closest_names(wanted: str, known: Iterable[str]) -> str:
    """Return a hint with the names that exist, or of many the closest ones; "" when there is none."""
    names = sorted(known)
    if len(names) <= FEW_NAMES:
        return f"There are: {', '.join(names)}" if names else ""
    closest = get_close_matches(wanted, names, CLOSEST_NAMES, cutoff=0.0)
    return f"The closest of {len(names)} names are: {', '.join(closest)}"


def connect_to_project(context: typer.Context, project: ProjectOption = "") -> ProjectClient:
    """Connect; the connection is closed when the command ends."""
    profile = profile_of(context)
    client = connect(profile)
    context.call_on_close(client.close)
    return ProjectClient(client, profile, project_id_of(client, profile, project))


def _connected(context: typer.Context) -> Client:
    client = client_of(context)
    context.call_on_close(client.close)
    return client


Cloud = Annotated[ProjectClient, Options(connect_to_project, is_last=True)]
"""The cloud and the project that a command works in, by --project."""
Connected = Annotated[Client, Options(_connected)]
"""The cloud, for commands that work in no project."""
CurrentProfile = Annotated[Profile, Options(profile_of)]


def project_id_of(client: Client, profile: Profile, named: str) -> str:
    """Return the id of the named project, or else the profile's. Raises ClientError if there is none."""
    cloud = ProjectClient(client, profile, profile.project_id)
    return project_of(profile, id_of(cloud, PROJECTS, named))


def tenant_id_of(client: Client, profile: Profile, named: str) -> str:
    """Return the id of the named tenant, or else the profile's, which may be "". Raises ClientError."""
    if not named or is_id_of(TENANTS, named):
        return named or profile.tenant_id
    try:
        return client.call(f"{TENANTS}/GetByName", {"name": named}).metadata.id
    except ClientError as error:
        if error.code != "NOT_FOUND":
            raise
        raise ClientError(
            "NOT_FOUND", f"There is no tenant {named!r}", "`neo iam tenant list` lists yours"
        ) from error


def container_id_of(client: Client, profile: Profile, named: str) -> str:
    """Return the id of a project or a tenant, by id or name; of both, the project. Raises ClientError."""
    if is_id_of(TENANTS, named):
        return named
    cloud = ProjectClient(client, profile, profile.project_id)
    try:
        return id_of(cloud, PROJECTS, named)
    except ClientError as error:
        if error.code != "NOT_FOUND":
            raise
    try:
        return tenant_id_of(client, profile, named)
    except ClientError as error:
        if error.code != "NOT_FOUND":
            raise
        raise ClientError(
            "NOT_FOUND",
            f"There is no project or tenant {named!r}",
            "`neo iam project list` and `neo iam tenant list` show names and ids",
        ) from error


def state_of(resource: Any) -> str:
    """Return the name of a resource's state."""
    return contract.enum_name(resource.status, "state")
