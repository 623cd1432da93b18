"""Estimates how many tokens an engine generated for an answer whose client left."""

KEPT_SHARE = 0.999
"""Share of the fastest speed that each answer keeps: a lower speed counts after some hundred answers."""


class Speeds:
    """Tokens a second of one answer, by deployment: the fastest of late."""

    def __init__(self) -> None:
        self._fastest: dict[str, float] = {}

    def saw(self, deployment_id: str, tokens: int, seconds: float) -> None:
        before = self._fastest.get(deployment_id, 0.0) * KEPT_SHARE
        self._fastest[deployment_id] = max(before, tokens / max(seconds, 1e-3))

    def tokens(self, deployment_id: str, seconds: float, most: int) -> int:
        """How many an answer may have by now; `most` where no answer was seen yet."""
        fastest = self._fastest.get(deployment_id)
        return most if fastest is None else min(int(fastest * seconds) + 1, most)
