"""The scores of `neo evaluate`: those of recipes/text_scores.py, which the evaluation inside a job uses too.

Recipes are scripts that import nothing of Neocloud, so the file is loaded by its path. BLEU and ROUGE come
from `sacrebleu` and `rouge_score`, which `pip install neocloud[train]` installs; a score whose package is
missing is None.
"""

import sys
from collections.abc import Mapping, Sequence
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType
from typing import Protocol

from neocloud.cli.output import JsonObject
from neocloud.core.training_data import recipes_folder

Pair = tuple[float | None, float | None]


class _Score(Protocol):
    def __call__(self, generated: Sequence[str], references: Sequence[str], /) -> float | None: ...


class _Rouge(Protocol):
    def __call__(self, generated: Sequence[str], references: Sequence[str], /) -> dict[str, float] | None: ...


class _Comparison(Protocol):
    def __call__(self, perplexity: Pair, speed: Pair, length: Pair) -> dict[str, float | None]: ...


class _MakeOutputs(Protocol):
    def __call__(
        self,
        losses: Mapping[int, tuple[float, int]],
        answers: Mapping[int, str],
        labels: Mapping[int, str],
        tokens_per_second: float | None,
        /,
    ) -> object: ...


class _MakeReferences(Protocol):
    def __call__(self, inputs: Sequence[str], answers: Sequence[str], labels: Sequence[str], /) -> object: ...


class _Compare(Protocol):
    def __call__(
        self,
        base: object,
        finetuned: object,
        references: object,
        seed: int,
        preferences: Mapping[int, float] | None,
        /,
    ) -> JsonObject: ...


def _loaded(name: str) -> ModuleType:
    known_as = f"neocloud_recipe_{name}"
    spec = spec_from_file_location(known_as, recipes_folder() / f"{name}.py")
    assert spec is not None and spec.loader is not None, "The folder of recipes has this file."
    module = sys.modules[known_as] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_RECIPE = _loaded("text_scores")
bleu: _Score = _RECIPE.bleu
rouge: _Rouge = _RECIPE.rouge
exact_match: _Score = _RECIPE.exact_match
comparison: _Comparison = _RECIPE.comparison
outputs: _MakeOutputs = _RECIPE.Outputs
references: _MakeReferences = _RECIPE.References
compare: _Compare = _RECIPE.compare
