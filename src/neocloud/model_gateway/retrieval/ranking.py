"""Rank chunks by their vectors and by the words of a query, and take the words of a query apart."""

import math
import re
from collections.abc import Mapping, Sequence

import numpy as np

from neocloud.model_gateway.retrieval.hnsw import Ids, Vectors

MAX_TERMS = 24
_WORD = re.compile(r"\w{2,64}|\d", re.UNICODE)


def query_terms(text: str) -> list[str]:
    """Return the different words of a query, without any sign that has a meaning in FTS5."""
    return list(dict.fromkeys(word.lower() for word in _WORD.findall(text)))[:MAX_TERMS]


def rarity(chunks: int, with_term: int) -> float:
    """Return the weight that FTS5 gives a word, by how many of the chunks have it."""
    return max(math.log((chunks - with_term + 0.5) / (with_term + 0.5)), 1e-6)


def fused(
    ids: Ids, similarities: Vectors, words: Sequence[Mapping[int, float]], weights: tuple[float, float]
) -> Vectors:
    """Return a rank value for each chunk: the best of its queries counts.

    `similarities` has a row for each id and a column for each query; `words` has for each query the share of
    its words, by rarity, that a chunk has. Ranks instead of values would put a common word above the meaning.
    """
    shares = np.array([[each.get(chunk, 0.0) for each in words] for chunk in ids.tolist()], dtype=np.float32)
    return (weights[0] * similarities + weights[1] * shares.reshape(similarities.shape)).max(axis=1)
