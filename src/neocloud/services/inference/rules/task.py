"""The tasks that a model can be served for: generate text, embed text as vectors, or rank documents. Pure."""

import re
from collections.abc import Mapping

from neocloud.core.json_values import as_list, as_object, is_object
from neocloud.messages.neocloud.inference.v1 import ModelStatus

GENERATE, EMBED, RERANK = "GENERATE", "EMBED", "RERANK"
_ENCODER = re.compile(r"(Bert|BERT|Roberta|MPNet|Electra)\w*(Model|ForMaskedLM)$")
"""Architectures that read a text and cannot continue it."""
_CLASSIFIER = "ForSequenceClassification"
_POOLING = ".Pooling"
"""The end of the name of a part of a sentence-transformers model that makes one vector of a text."""
_DEFAULT_LABELS = 2
"""The number of labels that transformers takes where config.json names none."""


class UnservedTask(ValueError):
    """A model whose answers no endpoint returns; the message says which."""


def only_embeds(architecture: str) -> bool:
    """Return whether an architecture of this name cannot generate text. Others may embed too."""
    return bool(_ENCODER.search(architecture))


def task_of(architecture: str, config: Mapping[str, object], modules: object) -> str:
    """Return the name of a ModelStatus.Task: what the model is made for.

    `modules` is the content of modules.json, with which sentence-transformers saves a model; None where there
    is none. Raises UnservedTask for a classifier with several labels.
    """
    if architecture.endswith(_CLASSIFIER):
        labels = _labels(config)
        if labels != 1:
            raise UnservedTask(
                f"{architecture} with {labels} labels is a classifier, which no endpoint serves; a model that"
                " ranks documents has one label"
            )
        return RERANK
    parts = [str(as_object(each).get("type", "")) for each in as_list(modules)]
    if only_embeds(architecture) or any(part.endswith(_POOLING) for part in parts):
        return EMBED
    return GENERATE


def possible_tasks(status: ModelStatus) -> tuple[str, ...]:
    """Return the tasks that the model can be served for, first the one that it is made for."""
    if status.architecture.endswith(_CLASSIFIER):
        return (RERANK,)
    if only_embeds(status.architecture):
        return (EMBED,)
    return (EMBED, GENERATE) if status.task == ModelStatus.EMBED else (GENERATE, EMBED)


def _labels(config: Mapping[str, object]) -> int:
    names, count = config.get("id2label"), config.get("num_labels")
    if is_object(names) and names:
        return len(names)
    return count if isinstance(count, int) else _DEFAULT_LABELS
