# pyright: strict
"""The failing verdicts of a pool and whether they were right, as a fold over its events."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from neocloud.fleet.events import Judged, Verdict

MOST = 500
"""The newest of a pool that are kept."""
MOST_OF_A_NODE = 100


@dataclass(frozen=True, slots=True)
class Failing:
    verdict: Verdict
    was_in_shadow: bool
    """Whether it could not drain the node when it was said."""
    judged: Judged | None = None


class FailingVerdicts:
    def __init__(self) -> None:
        self._found: dict[tuple[str, str], Failing] = {}

    @property
    def all(self) -> Sequence[Failing]:
        """Return all, the oldest first."""
        return list(self._found.values())

    def of(self, node: str) -> Sequence[Failing]:
        return [each for (name, _), each in self._found.items() if name == node]

    def get(self, node: str, verdict: str) -> Failing | None:
        return self._found.get((node, verdict))

    def add(self, verdict: Verdict, *, was_in_shadow: bool) -> None:
        """Take in a verdict. One that is said again, since its check left the shadow, keeps its judgement."""
        key = (verdict.node, verdict.id)
        known = self._found.pop(key, None)
        judged = known.judged if known is not None and known.verdict.check == verdict.check else None
        self._found[key] = Failing(verdict, was_in_shadow, judged)
        of_node = [each for each in self._found if each[0] == verdict.node]
        if len(of_node) > MOST_OF_A_NODE:
            del self._found[of_node[0]]
        elif len(self._found) > MOST:
            del self._found[next(iter(self._found))]

    def judge(self, event: Judged) -> None:
        key = (event.node, event.verdict)
        known = self._found.get(key)
        if known is not None and known.verdict.check == event.check:
            self._found[key] = replace(known, judged=event)
