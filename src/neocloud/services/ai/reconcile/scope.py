"""The scope of one run over an endpoint or a job: its runtime state, addresses and filesystems, and the
status fields that both kinds have.

A security group opens the declared ports to everything that reaches the subnet, and nothing else.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from neocloud.core import wire
from neocloud.core.reconcile.reconciler import CHILD_POLL_SECONDS, Context, Failed, RetryLater
from neocloud.core.store.protocol import Store
from neocloud.engines.base import Engine, Observation, ObservedPod, PodPhase
from neocloud.engines.images import pulled_name
from neocloud.engines.manifest import Interface
from neocloud.engines.manifest.network_spec import mac_of
from neocloud.messages.nebius.ai.v1 import EndpointStatus, JobStatus
from neocloud.messages.nebius.vpc.v1 import SecurityRuleSpec
from neocloud.services.ai.render import DISK_LABEL, RUN_LABEL, MountView
from neocloud.services.ai.rules import is_read_only, is_udp
from neocloud.services.ai.types import (
    POD,
    Reason,
    RuntimeState,
    Workload,
    WorkloadSpec,
    namespace,
    read_runtime_state,
    subnet_group_name,
)
from neocloud.services.compute.public import claim_reference, may_attach
from neocloud.services.compute.types import FilesystemState
from neocloud.services.vpc.types import (
    ANYWHERE,
    allow,
    interface_of,
    own_address,
    own_security_group,
    private_address,
    public_address,
)

WorkloadStatus = EndpointStatus | JobStatus


@dataclass
class WorkloadScope:
    context: Context
    message: Workload
    """The Endpoint or Job as stored."""
    runtime: RuntimeState
    observation: Observation
    interface: Interface | None = None
    """Set by a step, like the mounts."""
    mounts: tuple[MountView, ...] = ()

    @property
    def id(self) -> str:
        return self.message.metadata.id

    @property
    def spec(self) -> WorkloadSpec:
        return self.message.spec

    @property
    def state(self) -> str:
        return self.context.resource.state

    @property
    def is_deleting(self) -> bool:
        return self.context.resource.deleted_at is not None

    @property
    def should_run(self) -> bool:
        return not (self.runtime.is_stopped or self.runtime.outcome or self.is_deleting)

    @property
    def run(self) -> str:
        """The name of the attempt, which its pod has as a label."""
        return f"{self.runtime.round}-{self.runtime.attempt}"

    @property
    def image(self) -> str:
        """Return the image that its pod runs: the local name of a pulled image, once its digest is known."""
        digest = self.runtime.image_digest
        return pulled_name(self.message.metadata.parent_id, digest) if digest else self.spec.image

    @property
    def pod(self) -> ObservedPod | None:
        return self.observation.pod(POD)

    @property
    def current_pod(self) -> ObservedPod | None:
        """The pod of this attempt."""
        pod = self.pod
        return pod if pod is not None and pod.labels.get(RUN_LABEL) == self.run else None

    @property
    def has_disk_limit(self) -> bool:
        """Return whether its disk is limited: a limit would replace a pod of an earlier version."""
        pod = self.current_pod
        return pod is None or DISK_LABEL in pod.labels

    @property
    def is_up(self) -> bool:
        pod = self.current_pod
        return pod is not None and pod.phase is PodPhase.RUNNING


async def read_scope(context: Context, engine: Engine, store: Store, attempts: int) -> WorkloadScope:
    """Read the state of a workload, which has this many attempts after the first."""
    resource_id = context.resource.id
    runtime = await store.read(lambda tx: read_runtime_state(tx, resource_id))
    return WorkloadScope(
        context=context,
        message=wire.resource_message(context.resource),
        runtime=runtime or RuntimeState(attempts_left=attempts),
        observation=await engine.observe(namespace(resource_id)),
    )


def set_addresses(status: WorkloadStatus, scope: WorkloadScope, state: str) -> None:
    """Set the one instance and the endpoints of its ports. They stay until the new ones are known."""
    view = scope.interface
    if view is not None:
        private, public = str(view.address), str(view.public_address or "")
        for field, address in (("private_endpoints", private), ("public_endpoints", public)):
            endpoints = getattr(status, field)
            del endpoints[:]
            if address:
                endpoints.extend(f"{address}:{port.container_port}" for port in scope.spec.ports)
        del status.instances[:]
        status.instances.add(private_ip=private, public_ip=public)
    instance: Any  # of two classes, with states of the same names
    for instance in status.instances:
        instance.state = instance.State.Value(state)


def set_details(status: WorkloadStatus, code: str, message: str) -> None:
    status.ClearField("state_details")
    if code or message:
        status.state_details.code, status.state_details.message = code, message


def image_note(scope: WorkloadScope) -> str:
    """Say what a tag stood for when this round began; the API has no other place for it."""
    digest, image = scope.runtime.image_digest, scope.spec.image
    return "" if not digest or digest in image else f"The image {image} is {digest}."


_USABLE = frozenset({FilesystemState.READY, FilesystemState.UPDATING})


async def find_interface(scope: WorkloadScope) -> Interface:
    """Set the scope's interface and return it. Raises RetryLater until all addresses are assigned."""
    subnet_id, parent_id = scope.spec.subnet_id, scope.message.metadata.parent_id
    subnet = await scope.context.get(subnet_id)
    if subnet is None:
        raise Failed(
            Reason.SUBNET_GONE,
            f"Subnet {subnet_id} is gone; delete this and create it again on another subnet.",
        )
    private = await own_address(scope.context, parent_id, scope.id, private_address(subnet_id))
    public = None
    if scope.spec.public_ip:
        spec = public_address(subnet_id)
        public = await own_address(scope.context, parent_id, f"{scope.id}-public", spec)
    name = subnet_group_name(scope.id)
    group = await own_security_group(scope.context, subnet, parent_id, name, lambda _: _rules(scope.spec))
    scope.interface = interface_of(subnet, private, public, mac=mac_of(scope.id), security_groups=[group.id])
    return scope.interface


async def find_filesystems(scope: WorkloadScope) -> None:
    """Set the scope's mounts. Raises RetryLater until all are ready."""
    found: list[MountView] = []
    for volume in scope.spec.volumes:
        row = await scope.context.get(volume.source)
        if row is None or row.state == FilesystemState.ERROR:
            raise Failed(Reason.FILESYSTEM_FAILED, f"Filesystem {volume.source} is gone or has failed.")
        if not may_attach(row, scope.message.metadata.parent_id):
            raise Failed(
                Reason.FILESYSTEM_FAILED,
                f"Filesystem {volume.source} belongs to another resource or project; name one of your own.",
            )
        if row.state not in _USABLE:
            raise RetryLater(
                f"filesystem {row.name or row.id} is {row.state}", delay_seconds=CHILD_POLL_SECONDS
            )
        sub_path = volume.source_path.strip("/")
        found.append(MountView(claim_reference(row), volume.container_path, sub_path, is_read_only(volume)))
    scope.mounts = tuple(found)


def _rules(spec: WorkloadSpec) -> Mapping[str, SecurityRuleSpec]:
    """Return the rules by name: all traffic out, and in to each declared port."""
    out = allow()
    out.egress.destination_cidrs.append(ANYWHERE)
    rules = {"out": out}
    for protocol, ports in (
        ("TCP", [port.container_port for port in spec.ports if not is_udp(port)]),
        ("UDP", [port.container_port for port in spec.ports if is_udp(port)]),
    ):
        if ports:
            rule = rules[f"{protocol.lower()}-ports"] = allow(protocol)
            rule.ingress.source_cidrs.append(ANYWHERE)
            rule.ingress.destination_ports.extend(ports)
    return rules
