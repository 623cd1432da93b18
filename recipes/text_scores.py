"""Score generated texts against references, and compare two models.

Pure functions on text and numbers. BLEU and ROUGE come from `sacrebleu` and `rouge_score`; where
one is not installed its score is None.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from difflib import SequenceMatcher

try:
    import sacrebleu
except ImportError:
    sacrebleu = None
try:
    from rouge_score.rouge_scorer import RougeScorer
except ImportError:
    RougeScorer = None

WORD = re.compile(r"\w+")
RIGHT_SHARE = 0.7
"""The share of two answers' words that are the same, from which on one is right if the other is."""
NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


def bleu(generated: Sequence[str], references: Sequence[str]) -> float | None:
    """Return corpus BLEU, 0 to 100."""
    if sacrebleu is None:
        return None
    return sacrebleu.corpus_bleu(list(generated), [list(references)]).score


def rouge(generated: Sequence[str], references: Sequence[str]) -> dict[str, float] | None:
    """Return the mean F1 of ROUGE-1, ROUGE-2 and ROUGE-L, 0 to 1."""
    if RougeScorer is None:
        return None
    names = ["rouge1", "rouge2", "rougeL"]
    scorer = RougeScorer(names)
    scores = [scorer.score(right, text) for text, right in zip(generated, references, strict=True)]
    return {name: statistics.fmean(score[name].fmeasure for score in scores) for name in names}


def exact_match(generated: Sequence[str], references: Sequence[str]) -> float:
    """Return the share of answers that equal the reference, apart from case and outer spaces."""
    pairs = zip(generated, references, strict=True)
    return statistics.fmean(text.strip().lower() == right.strip().lower() for text, right in pairs)


def is_right(generated: str, reference: str) -> bool:
    """Return whether an answer says what the reference says: the same numbers, and nearly the same words in
    the same order."""
    said, right = WORD.findall(generated.lower()), WORD.findall(reference.lower())
    likeness = SequenceMatcher(None, said, right, autojunk=False).ratio()
    return numbers(generated) == numbers(reference) and likeness >= RIGHT_SHARE


def numbers(text: str) -> set[str]:
    """Return the numbers in a text, without the commas between thousands."""
    return {found.replace(",", "") for found in NUMBER.findall(text)}


def change_percent(base: float, finetuned: float) -> float | None:
    """Return the growth from base to fine-tuned in per cent; None if the base is 0."""
    return (finetuned - base) / base * 100 if base else None


def comparison(
    perplexity: tuple[float, float], speed: tuple[float, float], length: tuple[float, float]
) -> dict[str, float | None]:
    """Return changes in per cent; in each pair the base comes first. Perplexity is the decrease (positive
    is better), speed and message length are the increase."""
    fell = change_percent(*perplexity)
    return {
        "perplexity": None if fell is None else -fell,
        "speed": change_percent(*speed),
        "message_length": change_percent(*length),
    }
