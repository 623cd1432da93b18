"""Scores of generated texts, and the comparison of two models. Pure; a test holds it to the recipe's.

BLEU and ROUGE come from `sacrebleu` and `rouge_score`, which `pip install neocloud[train]` brings. Where one
is not installed its score is None.
"""

import statistics
from collections.abc import Sequence

try:
    import sacrebleu
except ImportError:
    sacrebleu = None
try:
    from rouge_score.rouge_scorer import RougeScorer
except ImportError:
    RougeScorer = None

_ROUGE = ["rouge1", "rouge2", "rougeL"]

Pair = tuple[float | None, float | None]


def bleu(generated: Sequence[str], references: Sequence[str]) -> float | None:
    """Of the whole corpus, 0 to 100."""
    if sacrebleu is None or not generated:
        return None
    return sacrebleu.corpus_bleu(list(generated), [list(references)]).score


def rouge(generated: Sequence[str], references: Sequence[str]) -> dict[str, float] | None:
    """Mean F1, 0 to 1."""
    if RougeScorer is None or not generated:
        return None
    scorer = RougeScorer(_ROUGE)
    scores = [scorer.score(right, text) for text, right in zip(generated, references, strict=True)]
    return {name: statistics.fmean(score[name].fmeasure for score in scores) for name in _ROUGE}


def exact_match(generated: Sequence[str], references: Sequence[str]) -> float | None:
    """Share of answers that are the reference, apart from case and outer spaces."""
    pairs = list(zip(generated, references, strict=True))
    if not pairs:
        return None
    return statistics.fmean(text.strip().lower() == right.strip().lower() for text, right in pairs)


def growth_percent(base: float | None, candidate: float | None) -> float | None:
    return (candidate - base) / base * 100 if base and candidate is not None else None


def comparison(perplexity: Pair, speed: Pair, length: Pair) -> dict[str, float | None]:
    """In per cent, base first. Perplexity is what it FELL by, the others are what they GREW by. FORM-04."""
    grown = growth_percent(*perplexity)
    return {
        "perplexity": None if grown is None else -grown,
        "speed": growth_percent(*speed),
        "message_length": growth_percent(*length),
    }
