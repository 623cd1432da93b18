"""Slurm's topology.conf: the tree of switches, from the places of nodes. Pure.

Slurm ignores nodes that it does not know, and places new ones when it reads its configuration the next time.
"""

from collections.abc import Iterable

from neocloud.services.slurm.render.view import ClusterView, PlaceView

ROOT = "cluster"
"""The switch above all others, where the places have several at the top: Slurm starts no job over nodes that
no switch connects."""
UNPLACED = "unplaced"
"""The leaf of the nodes without a place."""
RESERVED_SWITCHES = frozenset({ROOT, UNPLACED})


def topology_conf(view: ClusterView) -> str:
    """Return topology.conf; "" without a topology."""
    if not view.topology:
        return ""
    leaves: dict[str, list[str]] = {}
    inner: dict[str, dict[str, None]] = {}
    tops: dict[str, None] = {}
    for place in view.topology:
        tops[place.path[0]] = None
        for above, below in zip(place.path, place.path[1:], strict=False):
            inner.setdefault(above, {})[below] = None
        leaves.setdefault(place.path[-1], []).append(_nodes(place.node_set, place.first, place.last))
    unplaced = [
        _nodes(node_set.name, first, last)
        for node_set in view.node_sets
        for first, last in _gaps(
            (place for place in view.topology if place.node_set == node_set.name), node_set.count
        )
    ]
    if unplaced:
        leaves[UNPLACED] = unplaced
        tops[UNPLACED] = None
    if len(tops) > 1:
        inner[ROOT] = tops
    return "".join(
        (
            *(f"SwitchName={name} Nodes={','.join(nodes)}\n" for name, nodes in leaves.items()),
            *(f"SwitchName={name} Switches={','.join(below)}\n" for name, below in inner.items()),
        )
    )


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
