"""Rules of endpoints and jobs: shape, image, command, ports, paths, subnet, filesystems, capacity. Pure."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import TypeVar

from neocloud.core.kind import Rules, Violation
from neocloud.core.readers import ResourceReader
from neocloud.core.store.group_commit import refuse_while_writing
from neocloud.core.store.protocol import Resource
from neocloud.core.usage import CapacityUse, Rows
from neocloud.messages.nebius.ai.v1 import (
    CreateEndpointRequest,
    CreateJobRequest,
    Endpoint,
    EndpointSpec,
    EndpointStatus,
    Job,
    JobSpec,
    JobStatus,
)
from neocloud.messages.nebius.vpc.v1 import SubnetSpec
from neocloud.services.ai.types import (
    ENDPOINT,
    JOB,
    KnownImages,
    ReadWrite,
    Workload,
    WorkloadSpec,
    is_at_rest,
)
from neocloud.services.compute.public import (
    Demand,
    check_capacity,
    filesystem_attachment,
    find_filesystem,
    preset,
    preset_violations,
)
from neocloud.services.compute.types import GIB, attachment_namespace
from neocloud.services.registry.public import ImagePulls
from neocloud.services.vpc.types import NETWORK, SUBNET

MOST_ATTEMPTS = 100
SMALLEST_SECONDS = 1
DEFAULT_NETWORK = "default-network"
DEFAULT_DISK_BYTES = 10 * GIB
"""Size of the disk of a workload that names none; not charged."""
MOST_FILE_BYTES = 1024 * 1024
"""Bytes of all injected files together."""
FILE_REQUEST_BYTES = MOST_FILE_BYTES * 3 // 2
"""Bytes that a request with files may hold beyond others: in JSON they are Base64, a third longer."""
_SYSTEM = (PurePosixPath("/proc"), PurePosixPath("/sys"), PurePosixPath("/dev"))
_NO_CREDENTIALS = "images of this cloud's registries are pulled with your own rights; leave it out"
_NO_VAULT = "there is no MysteryBox here; give the value itself"
_NOT_OFFERED = {
    "registry_credentials": _NO_CREDENTIALS,
    "auth_token": "nothing in front of the port checks a token; let your program check it",
    "auth_token_mysterybox_secret": _NO_VAULT,
    "ssh_authorized_keys": "there is no machine around the container to sign in to; leave it out",
}
"""Fields of the contract that are refused here, with the reason. They are never silently ignored."""

VolumeMount = EndpointSpec.VolumeMount | JobSpec.VolumeMount
Port = EndpointSpec.Port | JobSpec.Port
WorkloadT = TypeVar("WorkloadT", Endpoint, Job)


class WorkloadRules(Rules[WorkloadT]):
    def request_violations(self, request: CreateEndpointRequest | CreateJobRequest) -> Iterable[Violation]:
        return word_violations(request.spec)

    def violations(
        self, new: WorkloadT, old: WorkloadT | None, reader: ResourceReader
    ) -> Iterable[Violation]:
        found = [
            *preset_violations(new.spec.platform, new.spec.preset, "spec"),
            *_not_offered(new.spec),
            *image_violations(new, reader),
            *container_violations(new.spec),
            *attachment_violations(new, reader),
            *_sizes(new.spec),
        ]
        if not found:
            may_preempt = not new.spec.preemptible
            demanded = demands(new.spec)
            check_capacity(reader, new.metadata, demanded, [], may_wait=True, may_preempt=may_preempt)
        return found

    def complete(self, new: WorkloadT, old: WorkloadT | None, reader: ResourceReader) -> None:
        if not new.spec.subnet_id:
            subnet = default_subnet(reader, new.metadata.parent_id)
            assert subnet is not None, "violations() has found it"
            new.spec.subnet_id = subnet.id
        reserve_filesystems(new, reader)


class EndpointRules(WorkloadRules[Endpoint]):
    def quota_demand(self, resource: Endpoint) -> Mapping[str, int]:
        """Count it as a machine of its shape, whether it runs or not."""
        return {"ai.endpoint.count": 1, **_shape_demand(resource.spec)}


class JobRules(WorkloadRules[Job]):
    is_demand_of_status = True

    def violations(self, new: Job, old: Job | None, reader: ResourceReader) -> Iterable[Violation]:
        spec = new.spec
        if not 0 <= spec.restart_attempts <= MOST_ATTEMPTS:
            yield Violation("spec.restart_attempts", f"must be from 0 to {MOST_ATTEMPTS}")
        if spec.HasField("timeout") and spec.timeout.seconds < SMALLEST_SECONDS:
            yield Violation("spec.timeout", f"must be {SMALLEST_SECONDS} s or more; leave it out for none")
        yield from super().violations(new, old, reader)

    def quota_demand(self, resource: Job) -> Mapping[str, int]:
        """Count it as a machine of its shape until it has ended; then it needs only its row."""
        status = resource.status
        has_ended = is_at_rest(JobStatus.State.Name(status.state), status.state_details.code)
        return {"ai.job.count": 1, **({} if has_ended else _shape_demand(resource.spec))}


def _shape_demand(spec: WorkloadSpec) -> Mapping[str, int]:
    shape = preset(spec.platform, spec.preset)
    if shape.gpus:
        return {f"compute.instance.gpu.{shape.gpu_type or 'any'}": shape.gpus}
    return {
        "compute.instance.non-gpu.vcpu": shape.vcpu,
        "compute.instance.non-gpu.memory": shape.memory_gib * GIB,
    }


def demands(spec: WorkloadSpec) -> list[Demand]:
    """Return the capacity that a running workload takes."""
    return [(preset(spec.platform, spec.preset), 1)]


def disk_bytes(spec: WorkloadSpec) -> int:
    """Return what the container may write beside its filesystems."""
    return spec.disk.size_bytes or DEFAULT_DISK_BYTES


def _sizes(spec: WorkloadSpec) -> Iterable[Violation]:
    for field, value in (("shm_size_bytes", spec.shm_size_bytes), ("disk.size_bytes", spec.disk.size_bytes)):
        if value < 0:
            yield Violation(f"spec.{field}", "must be 0 or more")


def _held(rows: Rows) -> Iterable[tuple[str, Demand]]:
    """An ended job, a stopped endpoint, and what needs a new start to run at all hold nothing."""
    messages = ((ENDPOINT, EndpointSpec, EndpointStatus), (JOB, JobSpec, JobStatus))
    for kind, spec_class, status_class in messages:
        for row in rows[kind]:
            if not is_at_rest(row.state, status_class.FromString(row.status).state_details.code):
                spec = spec_class.FromString(row.spec)
                yield row.id, (preset(spec.platform, spec.preset), 1)


CAPACITY = (CapacityUse((ENDPOINT, JOB), _held),)


def command_words(text: str) -> Sequence[str]:
    """Split a command as a shell does. No shell runs it. Raises ValueError."""
    refuse_while_writing("Splitting a command")
    return shlex.split(text)


def word_violations(spec: WorkloadSpec) -> Iterable[Violation]:
    for field in ("container_command", "args"):
        try:
            command_words(getattr(spec, field))
        except ValueError as error:
            yield Violation(f"spec.{field}", f"cannot be split into words: {error}; close every quote")


def container_violations(spec: WorkloadSpec) -> Iterable[Violation]:
    if spec.working_dir and not spec.working_dir.startswith("/"):
        yield Violation("spec.working_dir", "must be an absolute path")
    yield from _variables(spec)
    yield from _ports(spec)
    yield from _paths(spec)


def image_violations(new: Workload, reader: ResourceReader) -> Iterable[Violation]:
    """Raises ApiError unless the caller may pull the image of a registry."""
    image = new.spec.image
    pulls = reader.provided.find(ImagePulls)
    try:
        name = pulls.name_of(image) if pulls else None
    except ValueError as error:
        yield Violation("spec.image", str(error))
        return
    if pulls and name:
        reader.write(lambda tx: pulls.allow(tx, reader.subject, new.metadata, name))
        return
    known = reader.provided.find(KnownImages)
    names = known() if known else None
    if names is not None and image not in names:
        there = ", ".join(names) or "none yet"
        yield Violation(
            "spec.image",
            f"{image!r} is neither in a registry of this cloud nor on this machine, and other registries are "
            f"not asked. Push it to a registry (`neo registry registry create`), or name one of: {there}",
        )


def _variables(spec: WorkloadSpec) -> Iterable[Violation]:
    seen: set[str] = set()
    for index, variable in enumerate(spec.environment_variables):
        if not variable.name or "=" in variable.name or "\0" in variable.name + variable.value:
            yield Violation(f"spec.environment_variables[{index}].name", "must be a name without '='")
        elif variable.name in seen:
            yield Violation(f"spec.environment_variables[{index}].name", "is given twice; give it once")
        seen.add(variable.name)


def _ports(spec: WorkloadSpec) -> Iterable[Violation]:
    seen: set[tuple[int, bool]] = set()
    for index, port in enumerate(spec.ports):
        field, number = f"spec.ports[{index}]", port.container_port
        key = (number, is_udp(port))
        if port.host_port not in (0, number):
            yield Violation(f"{field}.host_port", "the container has an address of its own; leave this out")
        elif key in seen:
            yield Violation(f"{field}.container_port", "is given twice; give it once")
        seen.add(key)


def is_udp(port: Port) -> bool:
    return port.Protocol.Name(port.protocol) == "UDP"


def _paths(spec: WorkloadSpec) -> Iterable[Violation]:
    taken: set[PurePosixPath] = set()
    mounts = [(f"spec.volumes[{index}]", each) for index, each in enumerate(spec.volumes)]
    files = [(f"spec.injected_files[{index}]", each) for index, each in enumerate(spec.injected_files)]
    for field, each in (*mounts, *files):
        path = PurePosixPath(each.container_path)
        if not path.is_absolute() or ".." in path.parts or len(path.parts) < 2:
            yield Violation(f"{field}.container_path", "must be an absolute path below /, without '..'")
        elif any(path == root or root in path.parents for root in _SYSTEM):
            yield Violation(f"{field}.container_path", "is a folder of the system; choose another")
        elif path in taken:
            yield Violation(f"{field}.container_path", "is given twice; give it once")
        taken.add(path)
    for field, each in mounts:
        if ".." in PurePosixPath(each.source_path).parts:
            yield Violation(f"{field}.source_path", "must stay inside the filesystem, without '..'")
    if sum(len(each.content) for _, each in files) > MOST_FILE_BYTES:
        yield Violation("spec.injected_files", f"may have {MOST_FILE_BYTES} bytes in total; use a filesystem")


def _not_offered(spec: WorkloadSpec) -> Iterable[Violation]:
    for field, why in _NOT_OFFERED.items():
        descriptor = spec.DESCRIPTOR.fields_by_name.get(field)
        if descriptor is None:
            continue
        value = getattr(spec, field)
        is_given = spec.HasField(field) if descriptor.message_type else bool(value)
        if is_given:
            yield Violation(f"spec.{field}", why)
    for index, variable in enumerate(spec.environment_variables):
        if variable.HasField("mysterybox_secret"):
            yield Violation(f"spec.environment_variables[{index}].mysterybox_secret", _NO_VAULT)
    for index, volume in enumerate(spec.volumes):
        if volume.HasField("s3_config"):
            yield Violation(
                f"spec.volumes[{index}].s3_config", "there are no buckets here; name a filesystem"
            )
    yield from _pricing(spec)


def _pricing(spec: WorkloadSpec) -> Iterable[Violation]:
    """The contract checks that the model fits spec.preemptible."""
    if spec.pricing_model.WhichOneof("model") == "spot_pricing_policy":
        yield Violation("spec.pricing_model", "pricing policies are for instances; follow the spot price")


def attachment_violations(new: Workload, reader: ResourceReader) -> Iterable[Violation]:
    parent_id, spec = new.metadata.parent_id, new.spec
    if spec.subnet_id and _find(reader, SUBNET, spec.subnet_id, parent_id) is None:
        yield _missing("spec.subnet_id", "subnet", spec.subnet_id)
    elif not spec.subnet_id and default_subnet(reader, parent_id) is None:
        yield Violation("spec.subnet_id", "is required: the project has no default network; name a subnet")
    for index, volume in enumerate(spec.volumes):
        if find_filesystem(reader, volume.source, parent_id) is None:
            yield _missing(f"spec.volumes[{index}].source", "filesystem", volume.source)


def default_subnet(reader: ResourceReader, parent_id: str) -> Resource | None:
    """Return the first subnet of the project's default network."""
    network = reader.find(NETWORK, parent_id, DEFAULT_NETWORK)
    if network is None:
        return None
    rows = sorted(reader.list(SUBNET, parent_id), key=lambda row: (row.created_at, row.id))
    return next((row for row in rows if _is_in(row, network.id)), None)


def reserve_filesystems(new: Workload, reader: ResourceReader) -> None:
    """Reserve the filesystems, so that they are not deleted while they are mounted."""
    for volume in new.spec.volumes:
        value = filesystem_attachment(new.metadata.id, is_read_only=is_read_only(volume))
        reader.reserve(attachment_namespace(volume.source), value, new.metadata.id)


def is_read_only(volume: VolumeMount) -> bool:
    """Compare by name: endpoints and jobs number their modes differently."""
    return volume.Mode.Name(volume.mode) == ReadWrite.Name(ReadWrite.Value("READ_ONLY"))


def _is_in(subnet: Resource, network_id: str) -> bool:
    return not subnet.deleted_at and SubnetSpec.FromString(subnet.spec).network_id == network_id


def _find(reader: ResourceReader, kind: str, resource_id: str, parent_id: str) -> Resource | None:
    row = reader.get(resource_id)
    is_there = row is not None and row.kind == kind and row.parent_id == parent_id and not row.deleted_at
    return row if is_there else None


def _missing(field: str, noun: str, resource_id: str) -> Violation:
    return Violation(field, f'there is no {noun} "{resource_id}" in this project; check the id')
