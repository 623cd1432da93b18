"""Compute the units that the resource of a request to create or update would hold, by SKU, as the meters will
find it. Pure.
"""

from collections import Counter
from collections.abc import Mapping

from google.protobuf.message import Message

from neocloud.core.kind import Violation
from neocloud.messages.nebius.ai.v1 import CreateEndpointRequest, CreateJobRequest, EndpointSpec, JobSpec
from neocloud.messages.nebius.compute.v1 import (
    CreateDiskRequest,
    CreateFilesystemRequest,
    CreateInstanceRequest,
    DiskSpec,
    FilesystemSpec,
    InstanceSpec,
    UpdateDiskRequest,
    UpdateFilesystemRequest,
    UpdateInstanceRequest,
)
from neocloud.messages.neocloud.inference.v1 import CreateDeploymentRequest, DeploymentSpec
from neocloud.messages.neocloud.slurm.v1 import ClusterSpec, CreateClusterRequest
from neocloud.messages.neocloud.tuning.v1 import CreateFineTuningJobRequest
from neocloud.services.compute.public import filesystem_spec, preset, preset_violations
from neocloud.services.compute.types import FilesystemType, gib, size_bytes
from neocloud.services.slurm.public import demand

DiskType = DiskSpec.DiskType
Units = Mapping[str, int]
"""The units that a resource holds, by SKU."""


class NoEstimate(Exception):
    """The request has no price; `violation` names the field and what is valid."""

    def __init__(self, violation: Violation) -> None:
        super().__init__(violation.message)
        self.violation = violation


def units(request: Message) -> Units:
    """Return the units that the resource of a create or update request would hold. Raises NoEstimate."""
    match request:
        case CreateInstanceRequest() | UpdateInstanceRequest():
            return _instance(request.spec)
        case CreateDiskRequest() | UpdateDiskRequest():
            return _disk(request.spec)
        case CreateFilesystemRequest() | UpdateFilesystemRequest():
            return _filesystem(request.spec)
        case CreateClusterRequest():
            return _cluster(request.spec)
        case CreateEndpointRequest() | CreateJobRequest():
            return _container(request.spec)
        case CreateFineTuningJobRequest():
            spec = request.spec
            # On a Slurm cluster it costs what the nodes cost.
            return {} if spec.slurm_cluster_id else _shape(spec.platform, spec.preset, "spec")
        case CreateDeploymentRequest():
            return _deployment(request.spec)
        case _:
            name = request.DESCRIPTOR.full_name
            raise NoEstimate(Violation("spec", f"is a {name}, which has no price by the hour"))


def _shape(platform: str, name: str, path: str, *, is_preemptible: bool = False, count: int = 1) -> Units:
    for violation in preset_violations(platform, name, path):
        raise NoEstimate(violation)
    skus = preset(platform, name).skus(is_preemptible=is_preemptible)
    return {sku: number * count for sku, number in skus.items() if number * count}


def _instance(spec: InstanceSpec) -> Units:
    resources = spec.resources
    is_preemptible = spec.HasField("preemptible") or spec.WhichOneof("pricing_model") not in (
        None,
        "on_demand",
    )
    held = Counter(
        _shape(resources.platform, resources.preset, "spec.resources", is_preemptible=is_preemptible)
    )
    for attached in (spec.boot_disk, *spec.secondary_disks):
        if attached.HasField("managed_disk"):
            held.update(_disk(attached.managed_disk.spec))
    return held


def _cluster(spec: ClusterSpec) -> Units:
    """Return what is held in any case: of an elastic set, its workers that stay when they are idle."""
    for number, node_set in enumerate(spec.node_sets):
        for violation in preset_violations(node_set.platform, node_set.preset, f"spec.node_sets[{number}]"):
            raise NoEstimate(violation)
    held = Counter(demand(spec))
    for node_set in spec.node_sets:
        if node_set.HasField("elastic"):
            held.update(_shape(node_set.platform, node_set.preset, "", count=node_set.elastic.min_count))
    if spec.shared_root.size_gibibytes:
        held.update(_filesystem(filesystem_spec(spec.shared_root.size_gibibytes)))
    return held


def _container(spec: EndpointSpec | JobSpec) -> Units:
    held = Counter(_shape(spec.platform, spec.preset, "spec", is_preemptible=spec.preemptible))
    if spec.disk.size_bytes and spec.disk.type:
        kind = DiskType.Name(spec.disk.type)
        held.update(_stored("disk", DiskSpec(size_bytes=spec.disk.size_bytes), kind))
    return held


def _deployment(spec: DeploymentSpec) -> Units:
    """Return what its fewest replicas hold."""
    if spec.slurm_cluster_id:
        return {}
    if spec.charge != DeploymentSpec.BY_HOUR:
        raise NoEstimate(Violation("spec.charge", "is by the token, so it has no price by the hour"))
    return _shape(spec.platform, spec.preset, "spec", count=spec.scaling.min_replicas)


def _disk(spec: DiskSpec) -> Units:
    return _stored("disk", spec, DiskType.Name(spec.type))


def _filesystem(spec: FilesystemSpec) -> Units:
    return _stored("filesystem", spec, FilesystemType.Name(spec.type))


def _stored(noun: str, spec: DiskSpec | FilesystemSpec, kind: str) -> Units:
    if size_bytes(spec) <= 0:
        raise NoEstimate(Violation("spec.size", "is required: the cost is by the GiB"))
    return {f"{noun}.{kind.lower().replace('_', '-')}": gib(size_bytes(spec))}
