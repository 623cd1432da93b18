"""What is legal for a cluster: keys, names, presets, and that the machine can give what is asked."""

from collections.abc import Iterable
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_ssh_public_key

from neocloud.core.service import Rules, Violation, World
from neocloud.services.compute.resources import check_capacity, preset, preset_violations
from neocloud.services.slurm.resources import CLUSTER, DEFAULT_SHARED_ROOT_GIB, ClusterSpec

RESERVED_NODE_SET_NAMES = frozenset({"controller", "accounting", "login", "rest"})
PRIVILEGED_PORT_LIMIT = 1024


class ClusterRules(Rules):
    def defaults(self, resource: Any) -> None:
        if not resource.spec.shared_root.size_gibibytes:
            resource.spec.shared_root.size_gibibytes = DEFAULT_SHARED_ROOT_GIB

    def violations(self, new: Any, old: Any | None, world: World) -> Iterable[Violation]:
        found = [
            *_node_set_violations(new.spec),
            *_shared_root_violations(new.spec, old.spec if old else None),
            *_login_violations(new, world),
        ]
        if not found:
            _check_capacity(new, world)
        return found


def _node_set_violations(spec: Any) -> Iterable[Violation]:
    seen: set[str] = set()
    for index, node_set in enumerate(spec.node_sets):
        field = f"spec.node_sets[{index}]"
        if node_set.name in seen:
            yield Violation(f"{field}.name", f'"{node_set.name}" is used twice; choose another name')
        if node_set.name in RESERVED_NODE_SET_NAMES:
            yield Violation(f"{field}.name", f'"{node_set.name}" is a name the cluster uses itself')
        seen.add(node_set.name)
        yield from preset_violations(node_set.platform, node_set.preset, field)


def _shared_root_violations(new: Any, old: Any | None) -> Iterable[Violation]:
    if old and new.shared_root.size_gibibytes < old.shared_root.size_gibibytes:
        yield Violation(
            "spec.shared_root.size_gibibytes",
            f"the shared root cannot shrink below its {old.shared_root.size_gibibytes} GiB",
        )


def _login_violations(new: Any, world: World) -> Iterable[Violation]:
    for index, key in enumerate(new.spec.login.ssh_public_keys):
        if not _is_public_key(key):
            yield Violation(
                f"spec.login.ssh_public_keys[{index}]",
                'is no SSH public key; give one line such as "ssh-ed25519 AAAA... you@host"'
                " (the .pub file, never the private key)",
            )
    port = new.spec.login.port
    if 0 < port < PRIVILEGED_PORT_LIMIT:
        yield Violation("spec.login.port", f"must be 0 (any) or at least {PRIVILEGED_PORT_LIMIT}")
    holder = _port_holder(new, world) if port else None
    if holder:
        yield Violation("spec.login.port", f'port {port} is used by cluster "{holder}"; choose another')


def _is_public_key(text: str) -> bool:
    line = text.strip()
    if not line or "\n" in line:
        return False
    try:
        load_ssh_public_key(line.encode())
    except (ValueError, UnsupportedAlgorithm):
        return False
    return True


def _port_holder(new: Any, world: World) -> str | None:
    for row in world.list(CLUSTER):
        if row.id == new.metadata.id:
            continue
        if ClusterSpec.FromString(row.spec).login.port == new.spec.login.port:
            return row.name
    return None


def _check_capacity(new: Any, world: World) -> None:
    """Raises NOT_ENOUGH_RESOURCES unless this machine holds all clusters' workers together."""
    demands = list(_presets(new.spec))
    for row in world.list(CLUSTER):
        if row.id != new.metadata.id:
            demands.extend(_presets(ClusterSpec.FromString(row.spec)))
    check_capacity(world.inventory, demands)


def _presets(spec: Any) -> Iterable[tuple[Any, int]]:
    for node_set in spec.node_sets:
        if node_set.count:
            yield preset(node_set.platform, node_set.preset), node_set.count
