"""Rules of a cluster's topology: a tree, or blocks, with each node in one place. Pure."""

from collections.abc import Iterable

from neocloud.core.kind import Violation
from neocloud.messages.neocloud.slurm.v1 import ClusterSpec, NodePlace, Topology
from neocloud.services.slurm.render import MAX_NODES, RESERVED_SWITCHES


def topology_violations(spec: ClusterSpec) -> Iterable[Violation]:
    if not spec.HasField("topology"):
        return
    node_sets = {node_set.name for node_set in spec.node_sets}
    for index, place in enumerate(spec.topology.nodes):
        field = f"spec.topology.nodes[{index}]"
        if place.node_set not in node_sets:
            yield Violation(f"{field}.node_set", f'there is no node set "{place.node_set}"')
        if place.last < place.first:
            yield Violation(f"{field}.last", f"is less than first, {place.first}")
        for other in spec.topology.nodes[:index]:
            if place.node_set == other.node_set and place.first <= other.last and other.first <= place.last:
                number = max(place.first, other.first)
                yield Violation(field, f"{place.node_set}-{number} is in two places")
                break
    yield from _tree_violations(spec.topology.nodes)
    yield from _block_violations(spec.topology)


def _tree_violations(places: Iterable[NodePlace]) -> Iterable[Violation]:
    """Yield what is not a tree: a switch below two others, or with both nodes and switches."""
    above: dict[str, str] = {}
    is_leaf: dict[str, bool] = {}
    for index, place in enumerate(places):
        field = f"spec.topology.nodes[{index}].path"
        for depth, name in enumerate(place.path):
            parent = place.path[depth - 1] if depth else ""
            leaf = depth == len(place.path) - 1
            if name in RESERVED_SWITCHES:
                yield Violation(field, f'"{name}" is reserved for the cluster itself')
            elif above.setdefault(name, parent) != parent:
                both = " and below ".join(each or "no switch" for each in (above[name], parent))
                yield Violation(field, f"{name} is below {both}; a switch has one above it")
            elif is_leaf.setdefault(name, leaf) != leaf:
                yield Violation(field, f"{name} has nodes and switches below it; it may have one of them")


def _block_violations(topology: Topology) -> Iterable[Violation]:
    """Yield what slurmctld would end with."""
    sizes = topology.block_sizes
    if topology.type != Topology.BLOCK:
        if sizes:
            yield Violation("spec.topology.block_sizes", "is for topologies of the type BLOCK")
        return
    for index, place in enumerate(topology.nodes):
        if len(place.path) > 1:
            field = f"spec.topology.nodes[{index}].path"
            yield Violation(field, "must be the name of the block alone: no switches are above blocks")
    for index, size in enumerate(sizes):
        multiple = size // sizes[0]
        if size % sizes[0] or multiple & (multiple - 1) or (index and size <= sizes[index - 1]):
            text = f"must be {sizes[0]} times a power of two, and more than the size before"
            yield Violation(f"spec.topology.block_sizes[{index}]", text)
    blocks = len({place.path[-1] for place in topology.nodes if place.path}) + 1  # that of the rest
    if sizes and sizes[0] * blocks > MAX_NODES:
        text = (
            f"{blocks - 1} blocks of {sizes[0]} nodes are too many; a cluster has at most {MAX_NODES} nodes"
        )
        yield Violation("spec.topology.block_sizes", text)
