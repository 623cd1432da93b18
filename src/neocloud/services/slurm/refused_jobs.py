# pyright: strict
"""Explain a job that Slurm refused, with the next step, in the words of the cluster. Pure."""

import re
from shlex import quote

from neocloud.messages.neocloud.slurm.v1 import ClusterSpec

_UNAVAILABLE = "Requested node configuration is not available"
_NODES = re.compile(r"^#SBATCH\s+(?:.*\s)?(?:-N\s*|--nodes[=\s]\s*)([0-9]{1,6})\b", re.MULTILINE)
"""The least number of nodes that a line of a script asks for."""


def explained(message: str, script: str, cluster: str, spec: ClusterSpec) -> str:
    """Return Slurm's refusal of a script; where it asks for more than the cluster has, with what it has."""
    if _UNAVAILABLE not in message:
        return message
    asked = [int(number) for number in _NODES.findall(script)]
    workers = sum(part.count for part in spec.node_sets)
    name = quote(cluster)
    if asked and asked[-1] > workers:
        change = f"neo slurm cluster scale {name} --workers {asked[-1]}"
        return f"asks for {_nodes(asked[-1])}; {cluster} has {workers}: {change}. Slurm says: {message}"
    sets = ", ".join(f"{part.count} of {part.preset}" for part in spec.node_sets)
    has = f"{cluster} has {_nodes(workers)} ({sets})" if workers else f"{cluster} has no node"
    return f"asks for more than any nodes of the cluster have; {has}. Slurm says: {message}"


def _nodes(number: int) -> str:
    return f"{number} node" if number == 1 else f"{number} nodes"
