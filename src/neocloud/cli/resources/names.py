"""Names in place of ids: whatever a request refers to may be named, in options, in JSON and in manifests."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from neocloud.cli.output import JsonObject
from neocloud.cli.resources.lookup import (
    CLUSTERS,
    GROUPS,
    INSTANCES,
    MODELS,
    PROJECTS,
    SUBNETS,
    ProjectClient,
    id_of,
    id_prefix_of,
)
from neocloud.cli.resources.people import USERS, user_id
from neocloud.cli.resources.products import PRODUCTS
from neocloud.cli.resources.search import names_in
from neocloud.client.connection import Client
from neocloud.client.errors import ClientError
from neocloud.core import contract
from neocloud.core.json_values import is_list, is_object

ACCOUNTS = "nebius.iam.v1.TenantUserAccountService"
SERVICE_ACCOUNTS = "nebius.iam.v1.ServiceAccountService"
BY_FIELD: Mapping[str, str] = {
    "network_id": "nebius.vpc.v1.NetworkService",
    "subnet_id": SUBNETS,
    "pool_id": "nebius.vpc.v1.PoolService",
    "route_table_id": "nebius.vpc.v1.RouteTableService",
    "security_group_id": "nebius.vpc.v1.SecurityGroupService",
    "allocation_id": "nebius.vpc.v1.AllocationService",
    "disk_id": "nebius.compute.v1.DiskService",
    "snapshot_id": "nebius.compute.v1.DiskSnapshotService",
    "image_id": "nebius.compute.v1.ImageService",
    "gpu_cluster_id": "nebius.compute.v1.GpuClusterService",
    "filesystem_id": "nebius.compute.v1.FilesystemService",
    "instance_id": INSTANCES,
    "instance_ids": INSTANCES,
    "model_id": MODELS,
    "slurm_cluster_id": CLUSTERS,
    "pricing_policy_id": "nebius.billing.v1.PricingPolicyService",
    "service_account_id": SERVICE_ACCOUNTS,
    "member_id": SERVICE_ACCOUNTS,
    "subject_id": SERVICE_ACCOUNTS,
    "destination_bucket_id": "nebius.storage.v1.BucketService",
    "group_ids": GROUPS,
    "resource_id": PROJECTS,
    "project_id": PROJECTS,
}
"""Service by the end of a field's name: `source_disk_id` is a disk."""
BY_OBJECT: Mapping[str, str] = {
    "existing_disk": BY_FIELD["disk_id"],
    "existing_filesystem": BY_FIELD["filesystem_id"],
    "security_groups": BY_FIELD["security_group_id"],
    "gpu_cluster": BY_FIELD["gpu_cluster_id"],
    "allocation": BY_FIELD["allocation_id"],
    "pools": BY_FIELD["pool_id"],
    "spot_pricing_policy": BY_FIELD["pricing_policy_id"],
    "service_account": SERVICE_ACCOUNTS,
}
"""Service by the name of an object with an `id`."""
NOT_OURS = frozenset({"federated_subject_id"})


def resolve_names(request: JsonObject, descriptor: Descriptor, cloud: ProjectClient) -> None:
    """Replace each name by the id of the resource. Raises ClientError for a name that there is not.

    The keys of a map, such as those of labels, are the user's own, so they refer to nothing.
    """
    for key, value in request.items():
        field = _field_of(descriptor, key)
        if field is None or (field.message_type is not None and field.message_type.GetOptions().map_entry):
            continue
        service = service_of(field.name)
        if service:
            request[key] = _resolved(value, service, cloud)
        elif field.message_type is not None:
            for inner in value if is_list(value) else [value]:
                _resolve_inner(inner, field, field.message_type, cloud)


def with_field_names(document: JsonObject, descriptor: Descriptor) -> JsonObject:
    """Return a JSON object with its keys spelt as in the contract: `subnetId` is `subnet_id`."""
    renamed: JsonObject = {}
    for key, value in document.items():
        field = _field_of(descriptor, key)
        inside = field.message_type if field is not None else None
        is_map = inside is not None and inside.GetOptions().map_entry
        renamed[field.name if field is not None else key] = (
            value if inside is None or is_map else _renamed(value, inside)
        )
    return renamed


def _renamed(value: object, inside: Descriptor) -> object:
    if is_list(value):
        return [_renamed(item, inside) for item in value]
    return with_field_names(value, inside) if is_object(value) else value


def _field_of(descriptor: Descriptor, key: str) -> FieldDescriptor | None:
    """Return the field of a JSON key, which may be spelt `subnet_id` or `subnetId`."""
    return descriptor.fields_by_name.get(key) or descriptor.fields_by_camelcase_name.get(key)


def _resolved(value: object, service: str, cloud: ProjectClient) -> object:
    """Return ids for names; other values are returned unchanged, for the cloud to refuse."""
    if is_list(value):
        return [_resolved(item, service, cloud) for item in value]
    if not isinstance(value, str):
        return value
    if service == SERVICE_ACCOUNTS and "@" in value:
        return user_id(cloud.client, cloud.profile.tenant_id, value)
    return id_of(cloud, service, value)


def _resolve_inner(inner: object, field: FieldDescriptor, inside: Descriptor, cloud: ProjectClient) -> None:
    if not is_object(inner):
        return
    if field.name in BY_OBJECT and "id" in inner:
        inner["id"] = _resolved(inner["id"], BY_OBJECT[field.name], cloud)
    resolve_names(inner, inside, cloud)


def refers(path: Sequence[str]) -> bool:
    """Return whether the field at this path of a request refers to something that has a name."""
    is_object = path[-1] == "id" and any(name in BY_OBJECT for name in path[-2:-1])
    return is_object or bool(service_of(path[-1]))


def service_of(field: str) -> str:
    """Return the service of the resources that a field refers to by id; "" if it refers to none."""
    if field in NOT_OURS:
        return ""
    found = [name for name in BY_FIELD if field == name or field.endswith(f"_{name}")]
    return BY_FIELD[max(found, key=len)] if found else ""


MOST_NAMES = 12
"""Names on one page, where each name is a call: people, and all names of a server that has no search."""


def names_by_id(client: Client, answer: Message) -> Callable[[str], str]:
    """Return a function from an id in the answer to the name of the resource, or a person's e-mail address.

    It returns "" for what the caller may not read and for what is gone: the id then does.
    """
    found = cache(lambda: names_in(client, answer, _services_by_prefix()))
    asked: dict[str, str] = {}

    def name_of(identifier: str) -> str:
        service = _services_by_prefix().get(contract.id_prefix(identifier), "")
        names = found() if service and service != USERS else None
        if names is not None:
            return names.get(identifier, "")
        if identifier not in asked and service and len(asked) < MOST_NAMES:
            asked[identifier] = _name(client, service, identifier)
        return asked.get(identifier, "")

    return name_of


def _name(client: Client, service: str, identifier: str) -> str:
    try:
        found: Any = client.call(f"{service}/Get", {"id": identifier})
    except ClientError:  # what is shown is the page of something else, which was read
        return ""
    return found.attributes.email if service == USERS else found.metadata.name


@cache
def _services_by_prefix() -> Mapping[str, str]:
    nouns = [noun for product in PRODUCTS.values() for noun in product.nouns if "Get" in noun.verbs]
    by_prefix = {
        id_prefix_of(noun.service): noun.service
        for noun in nouns
        if "metadata" in noun.rpc("Get").output.DESCRIPTOR.fields_by_name
    }
    return {**by_prefix, id_prefix_of(CLUSTERS): CLUSTERS, id_prefix_of(ACCOUNTS): USERS}
