"""Join rankings by vectors and by words, and take the words of a query apart."""

import re
from collections import defaultdict
from collections.abc import Sequence

RANK_OFFSET = 60
"""The constant of reciprocal rank fusion, as its authors chose it."""
MAX_TERMS = 24
_WORD = re.compile(r"\w{2,64}|\d", re.UNICODE)


class Candidates:
    """Chunks by the sum of 1 / (60 + rank) over rankings."""

    def __init__(self) -> None:
        self._scores: defaultdict[int, float] = defaultdict(float)

    def add(self, ranked: Sequence[int], weight: float) -> None:
        for rank, chunk in enumerate(ranked, 1):
            self._scores[chunk] += weight / (RANK_OFFSET + rank)

    def ordered(self) -> list[int]:
        return sorted(self._scores, key=lambda chunk: (-self._scores[chunk], chunk))


def query_terms(text: str) -> list[str]:
    """Return the different words of a query, without any sign that has a meaning in FTS5."""
    return list(dict.fromkeys(word.lower() for word in _WORD.findall(text)))[:MAX_TERMS]
