"""Read what requests about vector stores bring: attributes, chunking, expiry, ranking."""

from collections.abc import Mapping
from dataclasses import dataclass

from neocloud.core.contract.json_codec import Json
from neocloud.model_gateway.api.errors import OpenAiError, bad_request
from neocloud.model_gateway.openai_files.handlers import reject_unknown

AUTO_TOKENS = 800
"""OpenAI's `auto`: chunks of 800 tokens, of which 400 are those of the chunk before."""
LEAST_TOKENS, MOST_TOKENS = 100, 4096
FRAME_TOKENS = 2
"""Tokens that an embedding model puts around a text."""
MAX_ATTRIBUTES = 16
MAX_ATTRIBUTE_KEY, MAX_ATTRIBUTE_TEXT = 64, 512
MAX_EXPIRY_DAYS = 365
MAX_RESULTS = 50
DEFAULT_RESULTS = 10
WORD_WEIGHT = 0.2
"""The weight of words beside 1 for vectors: words find names and numbers, and mislead by themselves."""
RANKERS = ("auto", "default-2024-11-15", "default-2024-08-21", "default_2024_08_21")


def invalid(param: str, what: str) -> OpenAiError:
    return bad_request(f"{param} {what}.", param=param, code="invalid_value")


@dataclass(frozen=True)
class Chunking:
    max_tokens: int
    overlap_tokens: int


def read_chunking(given: Json, context_length: int, param: str = "chunking_strategy") -> Chunking:
    """Return the sizes of chunks for a model that reads `context_length` tokens (0: not known)."""
    fits = max(context_length - FRAME_TOKENS, 1) if context_length else MOST_TOKENS
    if given is None or given == {"type": "auto"}:
        size = min(AUTO_TOKENS, fits)
        return Chunking(size, size // 2)
    if not isinstance(given, dict) or given.get("type") != "static":
        raise invalid(param, 'must be {"type": "auto"} or {"type": "static", "static": {...}}')
    reject_unknown(given, {"type", "static"})
    static = given.get("static")
    if not isinstance(static, dict):
        raise invalid(f"{param}.static", "must have max_chunk_size_tokens and chunk_overlap_tokens")
    reject_unknown(static, {"max_chunk_size_tokens", "chunk_overlap_tokens"})
    size, overlap = _whole(static.get("max_chunk_size_tokens")), _whole(static.get("chunk_overlap_tokens"))
    if size is None or not LEAST_TOKENS <= size <= MOST_TOKENS:
        raise invalid(
            f"{param}.static.max_chunk_size_tokens",
            f"must be a whole number from {LEAST_TOKENS} to {MOST_TOKENS}",
        )
    if overlap is None or not 0 <= overlap <= size // 2:
        raise invalid(
            f"{param}.static.chunk_overlap_tokens",
            "must be a whole number from 0 to half of max_chunk_size_tokens",
        )
    if size > fits:
        raise invalid(
            f"{param}.static.max_chunk_size_tokens",
            f"is {size}, but the embedding model of the store reads {fits} tokens. Choose at most that",
        )
    return Chunking(size, overlap)


def _whole(value: Json) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def read_attributes(given: Json, param: str = "attributes") -> dict[str, str | float | bool]:
    """Return at most 16 attributes: strings, numbers and booleans, as in OpenAI's API."""
    if given is None:
        return {}
    if not isinstance(given, dict) or len(given) > MAX_ATTRIBUTES:
        raise invalid(param, f"must be an object with at most {MAX_ATTRIBUTES} keys")
    found: dict[str, str | float | bool] = {}
    for key, value in given.items():
        if not 1 <= len(key) <= MAX_ATTRIBUTE_KEY:
            raise invalid(param, f"has a key that is empty or longer than {MAX_ATTRIBUTE_KEY} characters")
        if not isinstance(value, str | int | float) or (isinstance(value, int) and abs(value) > 2**53):
            raise invalid(f"{param}.{key}", "must be a string, a number or a boolean")
        if isinstance(value, str) and len(value) > MAX_ATTRIBUTE_TEXT:
            raise invalid(f"{param}.{key}", f"is longer than {MAX_ATTRIBUTE_TEXT} characters")
        found[key] = value
    return found


def read_expiry_days(given: Json, param: str = "expires_after") -> int:
    """Return the days of {"anchor": "last_active_at", "days": N}; 0 where it is missing."""
    if given is None:
        return 0
    days = _whole(given.get("days")) if isinstance(given, dict) else None
    is_known = (
        isinstance(given, dict) and given.keys() == {"anchor", "days"} and given["anchor"] == "last_active_at"
    )
    if not is_known or days is None or not 1 <= days <= MAX_EXPIRY_DAYS:
        raise invalid(
            param, f'must be {{"anchor": "last_active_at", "days": N}} with N from 1 to {MAX_EXPIRY_DAYS}'
        )
    return days


@dataclass(frozen=True)
class Ranking:
    most: int = DEFAULT_RESULTS
    least_score: float = 0.0
    vector_weight: float = 1.0
    word_weight: float = WORD_WEIGHT


def read_ranking(body: Mapping[str, Json], prefix: str = "") -> Ranking:
    """Read `max_num_results` and `ranking_options`. The ranker "none" ranks by vectors alone."""
    given = body.get("max_num_results")
    most = DEFAULT_RESULTS if given is None else _whole(given)
    if most is None or not 1 <= most <= MAX_RESULTS:
        raise invalid(f"{prefix}max_num_results", f"must be a whole number from 1 to {MAX_RESULTS}")
    param = f"{prefix}ranking_options"
    options = body.get("ranking_options")
    if options is None:
        return Ranking(most)
    if not isinstance(options, dict):
        raise invalid(param, "must be an object")
    reject_unknown(options, {"ranker", "score_threshold", "hybrid_search"})
    ranker = options.get("ranker") or "auto"
    if ranker not in (*RANKERS, "none"):
        raise invalid(f"{param}.ranker", f"must be one of {', '.join((*RANKERS, 'none'))}")
    least = _share(options.get("score_threshold"), 0.0, f"{param}.score_threshold")
    if ranker == "none":
        return Ranking(most, least, 1.0, 0.0)
    hybrid = options.get("hybrid_search")
    if hybrid is None:
        return Ranking(most, least)
    if not isinstance(hybrid, dict):
        raise invalid(f"{param}.hybrid_search", "must be an object")
    reject_unknown(hybrid, {"embedding_weight", "text_weight"})
    weights = [
        _share(hybrid.get(name), 1.0, f"{param}.hybrid_search.{name}")
        for name in ("embedding_weight", "text_weight")
    ]
    if not any(weights):
        raise invalid(f"{param}.hybrid_search", "needs a weight above 0")
    return Ranking(most, least, *weights)


def _share(given: Json, default: float, param: str) -> float:
    if given is None:
        return default
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given <= 1:
        raise invalid(param, "must be a number from 0 to 1")
    return float(given)
