"""Tasks of models: read from their files, also of models that an earlier release inspected."""

import json
from pathlib import Path
from typing import Any

import pytest
from neocloud.messages.neocloud.inference.v1 import ModelStatus

from neocloud.core.untrusted.files import Folder
from neocloud.services.inference.reconcile import weights
from neocloud.services.inference.reconcile.weights import BadWeights
from neocloud.services.inference.rules.task import possible_tasks
from tests.fast.services.inference.cloud import write_model

MODULES = [
    {"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
]


def write(folder: Path, files: dict[str, Any] | None = None, **config: Any) -> Path:
    write_model(folder, **config)
    for name, content in (files or {}).items():
        (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


def read(folder: Path) -> weights.Weights:
    with Folder.open(folder) as opened:
        return weights.read_weights(opened)


@pytest.mark.parametrize(
    ("architecture", "files", "config", "task"),
    [
        ("Qwen3ForCausalLM", {}, {}, "GENERATE"),
        ("Qwen3ForCausalLM", {"modules.json": MODULES}, {}, "EMBED"),
        ("Qwen3ForCausalLM", {"modules.json": MODULES[:1]}, {}, "GENERATE"),
        ("Qwen3ForCausalLM", {"modules.json": {"type": "a.Pooling"}}, {}, "GENERATE"),
        ("Qwen3ForCausalLM", {"modules.json": [7, None, {"type": 7}]}, {}, "GENERATE"),
        ("BertModel", {}, {}, "EMBED"),
        ("BertForSequenceClassification", {}, {"id2label": {"0": "LABEL_0"}}, "RERANK"),
        ("BertForSequenceClassification", {}, {"num_labels": 1}, "RERANK"),
    ],
)
def test_a_task_is_read_from_the_files(
    tmp_path: Path, architecture: str, files: dict[str, Any], config: dict[str, Any], task: str
) -> None:
    assert read(write(tmp_path / "m", files, architectures=[architecture], **config)).task == task


@pytest.mark.parametrize("config", [{}, {"id2label": {"0": "no", "1": "yes"}}, {"num_labels": 7}])
def test_a_classifier_is_refused_with_the_reason(tmp_path: Path, config: dict[str, Any]) -> None:
    with pytest.raises(BadWeights, match=r"labels is a classifier, which no endpoint serves"):
        read(write(tmp_path / "m", architectures=["BertForSequenceClassification"], **config))


def test_a_list_of_modules_that_is_broken_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadWeights, match=r"modules\.json is not valid JSON"):
        read(write(tmp_path / "m", {"modules.json": "[" * 100_000}))


@pytest.mark.parametrize(
    ("files", "length"),
    [
        ({}, 2048),
        ({"sentence_bert_config.json": {"max_seq_length": 256}}, 256),
        ({"sentence_xlm-roberta_config.json": {"max_seq_length": 128}}, 128),
        ({"tokenizer_config.json": {"model_max_length": 512}}, 512),
        ({"tokenizer_config.json": {"model_max_length": 10**30}}, 2048),
        ({"sentence_bert_config.json": {"max_seq_length": None}}, 2048),
        ({"sentence_bert_config.json": {"max_seq_length": -1}}, 2048),
        ({"sentence_bert_config.json": [256]}, 2048),
    ],
)
def test_an_encoder_reads_no_more_than_it_was_trained_on(
    tmp_path: Path, files: dict[str, Any], length: int
) -> None:
    found = read(write(tmp_path / "m", files, architectures=["BertModel"]))
    assert found.architecture.context_length == length


def test_a_model_that_generates_keeps_its_context(tmp_path: Path) -> None:
    found = read(write(tmp_path / "m", {"tokenizer_config.json": {"model_max_length": 512}}))
    assert found.architecture.context_length == 2048


def test_models_that_an_earlier_release_inspected_have_tasks(tmp_path: Path) -> None:
    assert possible_tasks(ModelStatus(architecture="Qwen3ForCausalLM")) == ("GENERATE", "EMBED")
    assert possible_tasks(ModelStatus(architecture="BertModel")) == ("EMBED",)
    made_for_vectors = ModelStatus(architecture="Qwen3ForCausalLM", task=ModelStatus.EMBED)
    assert possible_tasks(made_for_vectors) == ("EMBED", "GENERATE")
