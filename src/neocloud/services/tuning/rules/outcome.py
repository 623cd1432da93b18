"""The end of an attempt, as the recipes say. Pure.

The job's user can write the file, so an object that no recipe writes is no outcome.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from neocloud.core.json_values import is_number
from neocloud.messages.neocloud.tuning.v1 import Evaluation

LARGEST_NUMBER = 2**62
_COUNTS = ("trained_tokens", "conversations")
_PERPLEXITIES = ("base_perplexity", "fine_tuned_perplexity", "perplexity_improvement")
_REWARDS = ("base_reward", "fine_tuned_reward")


@dataclass(frozen=True)
class Stopped:
    """The attempt ended after a checkpoint because it was stopped."""


@dataclass(frozen=True)
class Failure:
    code: str
    message: str
    param: str


@dataclass(frozen=True)
class Success:
    trained_tokens: int
    conversations: int
    base_perplexity: float = 0.0
    fine_tuned_perplexity: float = 0.0
    perplexity_improvement: float = 0.0
    rewards: tuple[float, float] | None = None
    """The mean scores of base and new model, where a grader scored their answers."""

    def evaluation(self) -> Evaluation:
        found = Evaluation(
            base_perplexity=self.base_perplexity,
            fine_tuned_perplexity=self.fine_tuned_perplexity,
            perplexity_improvement=self.perplexity_improvement,
            conversations=self.conversations,
        )
        if self.rewards is not None:
            found.base_reward, found.fine_tuned_reward = self.rewards
        return found


Outcome = Stopped | Failure | Success
"""The end of an attempt."""


def read_outcome(found: Mapping[str, object]) -> Outcome | None:
    """Return the outcome; None for an object that no recipe writes."""
    match found:
        case {"state": "stopped"}:
            return Stopped()
        case {"state": "failed", "code": str(code), "message": str(message), "param": str(param)}:
            return Failure(code, message, param)
        case {"state": "succeeded"}:
            return _success(found)
        case _:
            return None


def _success(found: Mapping[str, object]) -> Success | None:
    counts, perplexities, rewards = (_numbers(found, names) for names in (_COUNTS, _PERPLEXITIES, _REWARDS))
    if not counts or not (perplexities or rewards):
        return None
    tokens, conversations = map(int, counts)
    if rewards:
        return Success(tokens, conversations, rewards=(rewards[0], rewards[1]))
    base, fine_tuned, improvement = perplexities
    return Success(tokens, conversations, base, fine_tuned, improvement)


def _numbers(found: Mapping[str, object], names: tuple[str, ...]) -> tuple[float, ...]:
    """Return the numbers with these names; () unless all are there."""
    values = [value for name in names if is_number(value := found.get(name)) and abs(value) < LARGEST_NUMBER]
    return tuple(map(float, values)) if len(values) == len(names) else ()
