"""The failing verdicts of a pool and whether they were right, as a fold over its events."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from neocloud.fleet.nodes.events import Judged, Verdict

MOST_OF_A_NODE = 50
"""The newest of a node that are kept."""


@dataclass(frozen=True, slots=True)
class Failing:
    verdict: Verdict
    was_in_shadow: bool
    """Whether it could not drain the node when it was said."""
    judged: Judged | None = None


class FailingVerdicts:
    def __init__(self) -> None:
        self._found: dict[str, dict[str, Failing]] = {}

    @property
    def all(self) -> Sequence[Failing]:
        return [each for of_node in self._found.values() for each in of_node.values()]

    @property
    def nodes(self) -> Sequence[str]:
        return list(self._found)

    def of(self, node: str) -> Sequence[Failing]:
        """Return those of a node, the oldest first."""
        return list(self._found.get(node, {}).values())

    def get(self, node: str, verdict: str) -> Failing | None:
        return self._found.get(node, {}).get(verdict)

    def add(self, verdict: Verdict, *, was_in_shadow: bool) -> None:
        """Take in a verdict. One that is said again, since its check left the shadow, keeps its judgement."""
        of_node = self._found.setdefault(verdict.node, {})
        known = of_node.pop(verdict.id, None)
        judged = known.judged if known is not None and known.verdict.check == verdict.check else None
        of_node[verdict.id] = Failing(verdict, was_in_shadow, judged)
        if len(of_node) > MOST_OF_A_NODE:
            del of_node[next(iter(of_node))]

    def judge(self, event: Judged) -> None:
        known = self.get(event.node, event.verdict)
        if known is not None and known.verdict.check == event.check:
            self._found[event.node][event.verdict] = replace(known, judged=event)
