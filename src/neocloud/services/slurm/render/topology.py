"""Slurm's topology.conf: the tree of switches, or the blocks, from the places of nodes. Pure.

Slurm ignores nodes that it does not know, and places new ones when it reads its configuration the next time.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile

from neocloud.services.slurm.render.view import MAX_NODES, ClusterView, PlaceView

ROOT = "cluster"
"""The switch above all others, where the places have several at the top: Slurm starts no job over nodes that
no switch connects."""
UNPLACED = "unplaced"
"""The leaf, or the block, of the nodes without a place."""
RESERVED_SWITCHES = frozenset({ROOT, UNPLACED})


def topology_conf(view: ClusterView) -> str:
    """Return topology.conf; "" without a topology."""
    if not view.topology:
        return ""
    return _blocks_conf(view) if view.has_blocks else _tree_conf(view)


def absent_nodes_conf(view: ClusterView) -> str:
    """Return lines of slurm.conf: nodes that never come, as many in each block as its smallest size.

    slurmctld and slurmd end where they know fewer nodes of a block, and a slurmd that registers by itself
    knows only its own (docs/rfd/0031).
    """
    size = block_sizes(view)[0]
    return "".join(f"NodeName={_absent(block, size)} State=FUTURE\n" for block in _leaves(view))


def absent_node_count(view: ClusterView) -> int:
    return block_sizes(view)[0] * len(_leaves(view)) if view.has_blocks else 0


def block_sizes(view: ClusterView) -> Sequence[int]:
    """Return how many nodes one block has, and several beside each other."""
    if view.block_sizes:
        return view.block_sizes
    counts = {node_set.name: node_set.count for node_set in view.node_sets}
    present: dict[str, int] = {}
    for place in view.topology:
        nodes = min(place.last, counts.get(place.node_set, 0) - 1) - place.first + 1
        if nodes > 0:
            present[place.path[-1]] = present.get(place.path[-1], 0) + nodes
    blocks = len(_leaves(view))
    first = min(present.values(), default=1)
    first = min(first, MAX_NODES // blocks)  # what is absent must fit into Slurm's table of nodes
    return [first * number for number in takewhile(lambda each: each < 2 * blocks, (2**i for i in range(16)))]


def _blocks_conf(view: ClusterView) -> str:
    sizes = block_sizes(view)
    lines = (
        f"BlockName={name} Nodes={','.join(nodes)},{_absent(name, sizes[0])}\n"
        for name, nodes in _leaves(view).items()
    )
    return f"{''.join(lines)}BlockSizes={','.join(map(str, sizes))}\n"


def _absent(block: str, size: int) -> str:
    """Return the names of the nodes that fill a block; names of node sets have no underscore."""
    return _nodes(f"absent_{block}", 0, size - 1)


def _tree_conf(view: ClusterView) -> str:
    leaves = _leaves(view)
    inner: dict[str, dict[str, None]] = {}
    tops = {place.path[0]: None for place in view.topology}
    for place in view.topology:
        for above, below in zip(place.path, place.path[1:], strict=False):
            inner.setdefault(above, {})[below] = None
    if UNPLACED in leaves:
        tops[UNPLACED] = None
    if len(tops) > 1:
        inner[ROOT] = tops
    return "".join(
        (
            *(f"SwitchName={name} Nodes={','.join(nodes)}\n" for name, nodes in leaves.items()),
            *(f"SwitchName={name} Switches={','.join(below)}\n" for name, below in inner.items()),
        )
    )


def _leaves(view: ClusterView) -> Mapping[str, list[str]]:
    """Return the nodes of each leaf or block, those without a place in one of their own."""
    leaves: dict[str, list[str]] = {}
    for place in view.topology:
        leaves.setdefault(place.path[-1], []).append(_nodes(place.node_set, place.first, place.last))
    unplaced = [
        _nodes(node_set.name, first, last)
        for node_set in view.node_sets
        for first, last in _gaps(
            (place for place in view.topology if place.node_set == node_set.name), node_set.count
        )
    ]
    return {**leaves, UNPLACED: unplaced} if unplaced else leaves


def _gaps(places: Iterable[PlaceView], count: int) -> Iterable[tuple[int, int]]:
    """Yield the ranges of a node set's `count` nodes that have no place, first and last number."""
    following = 0
    for place in sorted(places, key=lambda place: place.first):
        if min(place.first, count) > following:
            yield following, min(place.first, count) - 1
        following = place.last + 1
    if following < count:
        yield following, count - 1


def _nodes(node_set: str, first: int, last: int) -> str:
    return f"{node_set}-{first}" if first == last else f"{node_set}-[{first}-{last}]"
