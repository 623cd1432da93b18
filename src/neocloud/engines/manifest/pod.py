"""Pods: containers that share an address and volumes. Pure.

A field that no engine acts on is refused with its name instead of being dropped in silence; fields that only
steer the scheduler of a fleet are listed and let through.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

from neocloud.engines.base import KubernetesObject, Reference
from neocloud.engines.manifest.base import (
    Document,
    ManifestError,
    Metadata,
    Namespaced,
    as_mapping,
    check_choice,
    check_name,
    check_unique,
    decode,
    encode,
    fingerprint,
)
from neocloud.engines.manifest.container import Container, SeccompProfile
from neocloud.engines.manifest.network_spec import Interface, Member
from neocloud.engines.manifest.volume import CLAIM, ClaimSource, Volume

INTERFACE_ANNOTATION = "neocloud.dev/interface"
CLAIMS_ANNOTATION = "neocloud.dev/claims"
"""Claims of the pod's volumes that lie in other namespaces: {claim name: namespace}, as JSON. That is how
disks move between machines, and how filesystems are shared."""

ATTACHED_ANNOTATION = "neocloud.dev/attached-claims"
"""Claims that come and go while the pod runs, {claim name: {"namespace": ..., "readOnly": ...}}, as JSON.
Each is a folder of its name in the emptyDir volume ATTACHED_VOLUME, mounted with HostToContainer."""
ATTACHED_VOLUME = "attached-claims"

GPU_TYPE_ANNOTATION = "neocloud.dev/gpu-type"
"""The type of the GPUs that the pod's limits count; which ones it gets, the engine decides."""

OWN_CPUS_ANNOTATION = "neocloud.dev/own-cpus"

_ALWAYS = "Always"
_RESTART_POLICIES = (_ALWAYS, "OnFailure", "Never")
_GRACE_SECONDS = 30
_METADATA = ("name", "namespace", "labels", "interface", "gpu_type", "own_cpus", "attached", "scheduling")
_SCHEDULING = {
    "affinity",
    "dnsPolicy",
    "nodeSelector",
    "priorityClassName",
    "runtimeClassName",
    "schedulerName",
    "serviceAccountName",
    "tolerations",
    "topologySpreadConstraints",
}


@dataclass(frozen=True)
class Sysctl:
    name: str
    value: str


@dataclass(frozen=True, kw_only=True)
class PodSecurityContext:
    """Rights of all containers of a pod."""

    run_as_user: int | None = None
    run_as_group: int | None = None
    supplemental_groups: tuple[int, ...] = ()
    sysctls: tuple[Sysctl, ...] = ()
    seccomp_profile: SeccompProfile | None = None


@dataclass(frozen=True, kw_only=True)
class Pod(Namespaced):
    """Containers with one address, started together. A field that is None was not given."""

    kind: ClassVar[str] = "Pod"

    interface: Interface | None = None
    """On a virtual network; None: on the bridge of its namespace."""
    gpu_type: str = ""
    """A type in `neocloud.engines.gpu_types`, e.g. "h100"; "" takes any."""
    own_cpus: bool = False
    """Each container has CPUs for itself, as many as its limit says, where the engine can give it some."""
    attached: tuple[ClaimSource, ...] = ()
    """Claims that come and go while the pod runs, in its volume ATTACHED_VOLUME."""
    host_users: bool | None = None
    """False: in a user namespace, where the engine can make one."""
    hostname: str | None = None
    subdomain: str | None = None
    restart_policy: str | None = None
    termination_grace_period_seconds: int | None = None
    share_process_namespace: bool | None = None
    security_context: PodSecurityContext | None = None
    automount_service_account_token: bool | None = None
    enable_service_links: bool | None = None
    containers: tuple[Container, ...]
    volumes: tuple[Volume, ...] = ()
    scheduling: Mapping[str, object] = field(default_factory=dict[str, object])
    """Fields of the spec that only the scheduler of a fleet reads, by Kubernetes' key."""

    def _check(self) -> None:
        if self.restart_policy is not None:
            check_choice(self.restart_policy, _RESTART_POLICIES, "restartPolicy")
        check_name(self.host_name, "hostname", label=True)
        if self.grace_seconds < 0:
            raise ManifestError("must be 0 or more seconds.", field="terminationGracePeriodSeconds")
        if not self.containers:
            raise ManifestError("is empty; give the pod at least one.", field="containers")
        check_unique([volume.name for volume in self.volumes], "volume")
        check_unique([container.name for container in self.containers], "container")
        known = {volume.name for volume in self.volumes}
        for container in self.containers:
            for mount in container.volume_mounts:
                if mount.name not in known:
                    raise ManifestError(
                        f"{mount.name!r} is not one of the pod's volumes.",
                        field=f"container {container.name}: volumeMounts",
                    )
        _check_claims(self.volumes)
        self._check_attached()

    def _check_attached(self) -> None:
        check_unique([claim.claim_name for claim in self.attached], "attached claim")
        if self.attached and not self.shows_attached:
            raise ManifestError(
                f"needs an emptyDir volume {ATTACHED_VOLUME!r}.", field=f"annotation {ATTACHED_ANNOTATION}"
            )
        if self.shows_attached and self.host_users is False:
            raise ManifestError("cannot be false for a pod with attached claims.", field="hostUsers")

    @property
    def shows_attached(self) -> bool:
        """Return whether claims can be attached to the pod while it runs."""
        return any(volume.name == ATTACHED_VOLUME and volume.empty_dir for volume in self.volumes)

    @property
    def host_name(self) -> str:
        """Return the name by which other pods call it."""
        return self.hostname or self.name.replace(".", "-")

    @property
    def policy(self) -> str:
        """When its containers are started again: Always, OnFailure or Never."""
        return self.restart_policy or _ALWAYS

    @property
    def grace_seconds(self) -> int:
        grace = self.termination_grace_period_seconds
        return _GRACE_SECONDS if grace is None else grace

    @property
    def images(self) -> set[str]:
        return {container.image for container in self.containers}

    @property
    def member(self) -> Member | None:
        """Return its membership in a virtual network; None without one."""
        return Member(self.reference, self.interface, self.host_name) if self.interface else None

    @property
    def fingerprint(self) -> str:
        """Another one means another pod: its spec, and what cannot change of its interface."""
        spec = self.spec()
        if self.interface is None:
            return fingerprint(spec)
        mine = self.interface
        fixed = [mine.network, mine.subnet, str(mine.address), mine.mac]
        return fingerprint({"spec": spec, "interface": fixed})

    def spec(self) -> KubernetesObject:
        return {**encode(self, without=_METADATA), **self.scheduling}

    def volume(self, name: str) -> Volume:
        return next(volume for volume in self.volumes if volume.name == name)

    def claim_of(self, volume: Volume) -> Reference | None:
        """The claim that a volume of this pod names."""
        if volume.claim is None:
            return None
        return Reference(CLAIM, volume.claim.namespace or self.namespace, volume.claim.claim_name)

    @property
    def sub_paths(self) -> Sequence[tuple[str, str]]:
        """Volume and path of each mount of a part of a volume."""
        mounts = (mount for container in self.containers for mount in container.volume_mounts)
        return [(mount.name, mount.sub_path) for mount in mounts if mount.sub_path]

    @property
    def mounted_claims(self) -> set[Reference]:
        mounted = {claim for volume in self.volumes if (claim := self.claim_of(volume))}
        return mounted | {self.attached_claim(source) for source in self.attached}

    def attached_claim(self, source: ClaimSource) -> Reference:
        return Reference(CLAIM, source.namespace or self.namespace, source.claim_name)

    def environment_objects(self, kind: str) -> set[str]:
        """Return the names of the ConfigMaps or Secrets that its environment refers to."""
        return {name for found, name, _ in self._environment() if found == kind}

    @property
    def required_objects(self) -> set[Reference]:
        """Return the objects that must exist before the pod can start."""
        needs = [*self._environment(), *self._mounted()]
        required = {Reference(kind, self.namespace, name) for kind, name, optional in needs if not optional}
        return required | self.mounted_claims

    def _environment(self) -> Iterator[tuple[str, str, bool]]:
        for container in self.containers:
            for source in container.env_from:
                for kind, named in (("ConfigMap", source.config_map_ref), ("Secret", source.secret_ref)):
                    if named:
                        yield kind, named.name, named.optional
            for variable in container.env or ():
                found = variable.value_from
                if found and found.secret_key_ref:
                    yield "Secret", found.secret_key_ref.name, found.secret_key_ref.optional
                elif found and found.config_map_key_ref:
                    yield "ConfigMap", found.config_map_key_ref.name, found.config_map_key_ref.optional

    def _mounted(self) -> Iterator[tuple[str, str, bool]]:
        for volume in self.volumes:
            for kind, source in (("ConfigMap", volume.config_map), ("Secret", volume.secret)):
                if source:
                    yield kind, source.name, source.optional

    @classmethod
    def _of(cls, metadata: Metadata, body: Document) -> Self:
        spec = dict(as_mapping(body.get("spec"), "spec"))
        scheduling = {key: spec.pop(key) for key in _SCHEDULING & set(spec)}
        pod = decode(
            cls,
            spec,
            name=metadata.name,
            namespace=metadata.namespace,
            labels=metadata.labels,
            interface=_read_interface(metadata.annotations),
            gpu_type=metadata.annotations.get(GPU_TYPE_ANNOTATION, ""),
            own_cpus=metadata.annotations.get(OWN_CPUS_ANNOTATION) == "true",
            attached=_read_attached(metadata.annotations),
            scheduling=scheduling,
        )
        claims = _read_claims(metadata.annotations)
        if not claims:
            return pod
        return replace(pod, volumes=tuple(_placed(volume, claims) for volume in pod.volumes))

    def _body(self) -> Mapping[str, object]:
        return {"spec": self.spec()}

    def _annotations(self) -> Mapping[str, str]:
        found: dict[str, str] = {}
        if self.interface:
            found[INTERFACE_ANNOTATION] = self.interface.to_json()
        if self.gpu_type:
            found[GPU_TYPE_ANNOTATION] = self.gpu_type
        if self.own_cpus:
            found[OWN_CPUS_ANNOTATION] = "true"
        claims = {
            v.claim.claim_name: v.claim.namespace for v in self.volumes if v.claim and v.claim.namespace
        }
        if claims:
            found[CLAIMS_ANNOTATION] = json.dumps(claims, sort_keys=True)
        attached = {
            claim.claim_name: {"namespace": claim.namespace, "readOnly": claim.read_only}
            for claim in self.attached
        }
        if attached:
            found[ATTACHED_ANNOTATION] = json.dumps(attached, sort_keys=True)
        return found


def _check_claims(volumes: Sequence[Volume]) -> None:
    """The annotation has one namespace for each name of a claim."""
    places: dict[str, str] = {}
    for volume in volumes:
        if volume.claim:
            name, namespace = volume.claim.claim_name, volume.claim.namespace
            if places.setdefault(name, namespace) != namespace:
                raise ManifestError(f"claim {name} is named with two namespaces.", field="volumes")


def _placed(volume: Volume, claims: Mapping[str, str]) -> Volume:
    if volume.claim is None or volume.claim.claim_name not in claims:
        return volume
    return replace(volume, claim=replace(volume.claim, namespace=claims[volume.claim.claim_name]))


def _read_interface(annotations: Mapping[str, str]) -> Interface | None:
    text = annotations.get(INTERFACE_ANNOTATION)
    if text is None:
        return None
    try:
        return Interface.from_json(text)
    except ManifestError as error:
        raise error.within(f"annotation {INTERFACE_ANNOTATION}") from error


def _read_attached(annotations: Mapping[str, str]) -> tuple[ClaimSource, ...]:
    where = f"annotation {ATTACHED_ANNOTATION}"
    found: list[ClaimSource] = []
    for name, value in _read_json(annotations, ATTACHED_ANNOTATION).items():
        fields = as_mapping(value, f"{where}: {name}")
        namespace, is_read_only = fields.get("namespace", ""), fields.get("readOnly", False)
        if not isinstance(is_read_only, bool) or not isinstance(namespace, str):
            raise ManifestError("needs a namespace and readOnly.", field=f"{where}: {name}")
        check_name(name, f"{where}: claim", label=True)
        found.append(ClaimSource(name, namespace, is_read_only))
    return tuple(found)


def _read_json(annotations: Mapping[str, str], name: str) -> Mapping[str, object]:
    text, where = annotations.get(name), f"annotation {name}"
    if text is None:
        return {}
    try:
        return as_mapping(json.loads(text), where)
    except ValueError as error:
        raise ManifestError(f"is not valid JSON: {error}.", field=where) from error


def _read_claims(annotations: Mapping[str, str]) -> Mapping[str, str]:
    found, where = _read_json(annotations, CLAIMS_ANNOTATION), f"annotation {CLAIMS_ANNOTATION}"
    claims: dict[str, str] = {}
    for claim, namespace in found.items():
        check_name(claim, f"{where}: claim")
        check_name(namespace, f"{where}: namespace", label=True)
        claims[claim] = str(namespace)
    return claims
