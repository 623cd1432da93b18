"""The world that a fake engine runs: pods, volumes and objects in memory.

It outlives engine objects, as containers outlive a server, and can be kept in a file for tests that kill the
process. It starts nothing: the engine changes it, tests inspect it.
"""

import pickle  # nosec B403
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from neocloud.engines.base import EngineError, ObservedPod, PlatformService, PodPhase, Reference
from neocloud.engines.fake.faults import Faults
from neocloud.engines.images import ImageSettings
from neocloud.engines.manifest import (
    CLAIM,
    DISK,
    MACHINE_IMAGE,
    Container,
    Manifest,
    NetworkPolicy,
    Pod,
    Service,
    VirtualNetwork,
    VolumeClaim,
)
from neocloud.engines.manifest.network_spec import Member
from neocloud.engines.network_rules import check_unused, may_connect, may_leave

Value = TypeVar("Value")


class ByNamespace(dict[Reference, Value]):
    """A dictionary by reference that finds the entries of a namespace without looking at all others.

    Change it by items, `del`, `discard` and `setdefault` only: they keep the index.
    """

    def __new__(cls, *given: object) -> "ByNamespace[Value]":
        made = super().__new__(cls)
        made._names = {}  # here, because unpickling sets items before anything else
        return made

    _names: dict[str, dict[Reference, None]]

    def __setitem__(self, reference: Reference, value: Value) -> None:
        self._names.setdefault(reference.namespace, {})[reference] = None
        super().__setitem__(reference, value)

    def __delitem__(self, reference: Reference) -> None:
        super().__delitem__(reference)
        names = self._names[reference.namespace]
        del names[reference]
        if not names:
            del self._names[reference.namespace]

    def discard(self, reference: Reference) -> Value | None:
        """Remove an entry and return it; None where there is none."""
        value = self.get(reference)
        if reference in self:
            del self[reference]
        return value

    def setdefault(self, reference: Reference, default: Value) -> Value:  # type: ignore[override]
        if reference not in self:
            self[reference] = default
        return self[reference]

    def of(self, namespace: str) -> Sequence[Reference]:
        """The references in this namespace, in the order in which they came."""
        return tuple(self._names.get(namespace, ()))


Files = MutableMapping[str, bytes]
"""Content by path."""

_BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


class ContainerState(StrEnum):
    CREATED = "created"
    RUNNING = "running"
    EXITED = "exited"


@dataclass
class FakeContainer:
    manifest: Container
    state: ContainerState = ContainerState.CREATED
    exit_code: int = 0
    restart_count: int = 0
    started_at: datetime | None = None
    logs: list[str] = field(default_factory=list[str])
    files: Files = field(default_factory=dict[str, bytes])
    ports: set[int] = field(default_factory=set[int])
    """Ports on which it listens."""

    @property
    def name(self) -> str:
        return self.manifest.name

    @property
    def is_running(self) -> bool:
        return self.state is ContainerState.RUNNING


@dataclass
class FakePod:
    manifest: Pod
    ip: str
    containers: list[FakeContainer]
    scratch: dict[str, Files] = field(default_factory=dict[str, Files])
    member: Member | None = None
    """Set while its interface is on a virtual network."""

    @property
    def reference(self) -> Reference:
        return self.manifest.reference

    @property
    def policy(self) -> str:
        return self.manifest.policy

    def container(self, name: str | None) -> FakeContainer:
        """Return the container of this name, or the first. Raises EngineError when there is none."""
        for container in self.containers:
            if name in (None, container.name):
                return container
        raise EngineError(f"Pod {self.reference.name} has no container {name!r}.")

    def is_due(self, container: FakeContainer) -> bool:
        """Return whether the container is to be started, for the first time or again."""
        if container.state is not ContainerState.EXITED:
            return container.state is ContainerState.CREATED
        return self.policy == "Always" or (self.policy == "OnFailure" and container.exit_code != 0)


@dataclass
class FakeWorld:
    """Everything that exists. With a `path` it is written there after every change."""

    path: Path | None = None
    namespaces: dict[str, int] = field(default_factory=dict[str, int])
    """Each with its number, which is never given again, so that subnets stay put."""
    objects: ByNamespace[Manifest] = field(default_factory=ByNamespace[Manifest])
    """All but pods and namespaces."""
    pods: ByNamespace[FakePod] = field(default_factory=ByNamespace[FakePod])
    volumes: ByNamespace[Files] = field(default_factory=ByNamespace[Files])
    addresses: ByNamespace[str] = field(default_factory=ByNamespace[str])
    holders: dict[str, Reference] = field(default_factory=dict[str, Reference])
    """The pod that has each address, card and public address of a virtual network."""
    images: dict[str, ImageSettings] = field(default_factory=dict[str, ImageSettings])
    """The images that were pulled, by their local names."""
    platform_services: tuple[PlatformService, ...] = ()
    ticks: int = 0
    numbered: int = 0
    """So many namespaces have got a number."""

    @classmethod
    def open(cls, path: Path) -> "FakeWorld":
        """The world kept in this file, a new one when there is none."""
        return pickle.loads(path.read_bytes()) if path.exists() else cls(path)  # its own file  # nosec B301

    def save(self) -> None:
        if self.path:
            temporary = self.path.with_suffix(".new")
            temporary.write_bytes(pickle.dumps(self))
            temporary.replace(self.path)

    def tick(self) -> datetime:
        """A time that only moves when something happens."""
        self.ticks += 1
        return _BEGIN + timedelta(seconds=self.ticks)

    def pods_of(self, namespace: str) -> Iterator[FakePod]:
        return (self.pods[reference] for reference in self.pods.of(namespace))

    def add(self, pod: FakePod) -> None:
        self.pods[pod.reference] = pod
        self.change(pod, pod.manifest)

    def change(self, pod: FakePod, manifest: Pod) -> None:
        self._release(pod)
        pod.manifest, pod.member = manifest, manifest.member
        if pod.member:
            self.holders |= dict.fromkeys(pod.member.holdings, pod.reference)

    def take(self, reference: Reference) -> FakePod | None:
        """The pod, which is no longer there."""
        pod = self.pods.discard(reference)
        if pod:
            self._release(pod)
        return pod

    def _release(self, pod: FakePod) -> None:
        for what in pod.member.holdings if pod.member else ():
            self.holders.pop(what, None)

    def networks(self) -> list[VirtualNetwork]:
        return [found for found in self.objects.values() if isinstance(found, VirtualNetwork)]

    def network(self, namespace: str) -> VirtualNetwork | None:
        found = (self.objects[reference] for reference in self.objects.of(namespace))
        return next((network for network in found if isinstance(network, VirtualNetwork)), None)

    def members(self) -> list[Member]:
        return [pod.member for pod in self.pods.values() if pod.member]

    def add_namespace(self, namespace: str) -> None:
        if namespace not in self.namespaces:
            self.namespaces[namespace] = self.numbered
            self.numbered += 1

    def remove_namespace(self, namespace: str) -> None:
        self.namespaces.pop(namespace, None)
        for kept in (self.objects, self.volumes, self.addresses):
            for reference in kept.of(namespace):
                del kept[reference]

    def address_of(self, pod: Reference) -> str:
        """Lowest free one, and the same again for the same name."""
        if pod not in self.addresses:
            high, low = divmod(self.namespaces[pod.namespace], 256)
            taken = {self.addresses[reference] for reference in self.addresses.of(pod.namespace)}
            candidates = (f"10.{200 + high % 56}.{low}.{host}" for host in range(2, 255))
            self.addresses[pod] = next(address for address in candidates if address not in taken)
        return self.addresses[pod]

    def neighbours(self, pod: FakePod) -> list[FakePod]:
        """Pods on the same bridge or virtual network, itself among them, own namespace first."""
        if pod.member is None:
            return [other for other in self.pods_of(pod.reference.namespace) if other.member is None]
        network = pod.member.interface.network
        found = (p for p in self.pods.values() if p.member and p.member.interface.network == network)
        return sorted(found, key=lambda other: other.reference.namespace != pod.reference.namespace)

    def may_connect(self, pod: FakePod, other: FakePod, port: int) -> bool:
        if pod.member is None or other.member is None:
            return pod.member is other.member
        network = self.network(pod.member.interface.network)
        return network is not None and may_connect(
            network, self.members(), pod.member, other.member, "tcp", port
        )

    def services_for(self, pod: FakePod) -> list[PlatformService]:
        """Return the platform services whose names the pod gets."""
        network = self.network(pod.member.interface.network) if pod.member else None
        if network is not None:
            names = set(network.platform_services)
        else:
            found = (self.objects[reference] for reference in self.objects.of(pod.reference.namespace))
            policies = (each for each in found if isinstance(each, NetworkPolicy))
            names = {name for policy in policies for name in policy.platform_services}
        return [service for service in self.platform_services if service.name in names]

    def may_use(self, pod: FakePod, service: PlatformService) -> bool:
        """Return whether its rules let the pod connect to a platform service whose name it gets."""
        if pod.member is None:
            return True
        network = self.network(pod.member.interface.network)
        return network is not None and may_leave(
            network, self.members(), pod.member, service.address, "tcp", service.port
        )

    def hosts_of(self, pod: FakePod) -> str:
        network = self.network(pod.member.interface.network) if pod.member else None
        lines = ["127.0.0.1 localhost"]
        lines += [f"{each.address} {each.host_name}" for each in self.services_for(pod)]
        for other in self.neighbours(pod):
            hostname = other.manifest.hostname or other.reference.name
            full = [f"{hostname}.{network.domain}"] if network and network.domain else []
            services = (
                self._services_of(other) if other.reference.namespace == pod.reference.namespace else ()
            )
            lines.append(" ".join([other.ip, hostname, *full, *services]))
        return "\n".join(lines) + "\n"

    def _services_of(self, pod: FakePod) -> Iterator[str]:
        for reference in self.objects.of(pod.reference.namespace):
            service = self.objects[reference]
            if isinstance(service, Service) and service.selects(pod.manifest.labels):
                yield service.name


def observed_pod(pod: FakePod, answers: Callable[[FakePod, FakeContainer], bool]) -> ObservedPod:
    """Return the observed state of a pod. `answers` runs a container's readiness probe."""
    starts = [container.started_at for container in pod.containers if container.started_at]
    running = all(container.is_running for container in pod.containers)
    ended = [c for c in pod.containers if c.state is ContainerState.EXITED]
    return ObservedPod(
        reference=pod.reference,
        phase=_phase(pod),
        ready=running and all(answers(pod, container) for container in pod.containers),
        ip=pod.ip,
        labels=dict(pod.manifest.labels),
        restart_count=sum(container.restart_count for container in pod.containers),
        started_at=min(starts) if starts else None,
        message="; ".join(f"{c.name} ended with code {c.exit_code}" for c in ended),
        last_exit=next((c.exit_code for c in pod.containers if c.restart_count), None),
    )


def _phase(pod: FakePod) -> PodPhase:
    if any(container.is_running for container in pod.containers):
        return PodPhase.RUNNING
    if any(container.state is ContainerState.CREATED for container in pod.containers):
        return PodPhase.PENDING
    failed = any(container.exit_code for container in pod.containers)
    if pod.policy == "Always" or (pod.policy == "OnFailure" and failed):
        return PodPhase.PENDING
    return PodPhase.FAILED if failed else PodPhase.SUCCEEDED


def fill_claim(world: FakeWorld, faults: Faults, claim: VolumeClaim) -> None:
    """Fill a new claim from its data source. Raises EngineError."""
    reference, source = claim.reference, claim.data_source
    known = world.objects.get(reference)
    if isinstance(known, VolumeClaim):
        if known.data_source != source:
            raise EngineError(
                f"PersistentVolumeClaim {reference.name} exists with another dataSourceRef; "
                "remove it first, which deletes its data, or choose another name."
            )
        if claim.is_filesystem and claim.size_bytes < known.size_bytes:
            raise EngineError(f"{reference.kind} {claim.name} cannot shrink; create a smaller one.")
    elif source and source.kind == CLAIM:
        if source.claim not in world.objects:
            raise EngineError(f"{source} does not exist; it cannot be copied.")
        world.volumes[reference] = dict(world.volumes.get(source.claim, {}))
    elif source and source.kind == MACHINE_IMAGE:
        if source.name in faults.unknown_images:
            raise EngineError(f"{source} is not known; build or import it first.")
        world.volumes[reference] = {DISK: f"disk of image {source.name}".encode()}


def refuse_if_used(world: FakeWorld, reference: Reference) -> None:
    """Raise EngineError for a claim, network or namespace that a remaining pod uses."""
    if reference.kind in ("VirtualNetwork", "Namespace"):
        removed = reference.namespace if reference.kind == "Namespace" else ""
        staying = (m for m in world.members() if m.pod.namespace != removed)
        check_unused(reference.namespace, staying)
    for pod in world.pods.values():
        if pod.reference.namespace == reference.namespace and reference.kind == "Namespace":
            continue  # it is removed too
        for claim in pod.manifest.mounted_claims:
            is_meant = claim == reference or (
                reference.kind == "Namespace" and claim.namespace == reference.name
            )
            if is_meant:
                raise EngineError(
                    f"PersistentVolumeClaim {claim.name} is in use by pod {pod.reference.name}; "
                    "remove that pod first."
                )
