"""The tasks that come along, run by the real lm-eval on a served model: its likeliest topics are those that
PyTorch finds. EVAL-04."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from neocloud.cli.evaluation.client import Model
from neocloud.cli.evaluation.tasks import PROGRAM_VARIABLE, Tasks, task_results
from neocloud.client.credentials import StaticToken
from neocloud.client.errors import ClientError
from neocloud.client.gateway import Gateway
from tests.clients import CLIENTS
from tests.fast.cli.evaluation.served_model import KEY, ServedModel, running
from tests.fast.recipes.conftest import RECIPES

PROGRAM = CLIENTS / "lm-eval" / "bin" / "lm-eval"
TASKS = RECIPES / "tasks"
LIMIT = 6


@pytest.fixture
def model(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    assert PROGRAM.exists(), "lm-eval is not installed: scripts/install-client lm-eval"
    monkeypatch.setenv(PROGRAM_VARIABLE, str(PROGRAM))
    with running(ServedModel(tiny_model)) as served, httpx.Client(trust_env=False, timeout=60) as http:
        yield served, Model(Gateway(served.url, StaticToken(KEY), http), "tiny")


def test_the_tasks_that_come_along_run(model: Any, tiny_model: Path) -> None:
    served, asked = model
    found, better = task_results(asked, Tasks("bank_topics,bank_replies", TASKS, str(tiny_model), LIMIT))
    assert found["bank_topics"]["acc"] == accuracy(served)
    assert set(found["bank_replies"]) == {"bleu", "exact_match"}
    assert better["bank_topics/acc"] == better["bank_replies/bleu"] == "higher"


def test_a_task_that_there_is_not_is_said(model: Any) -> None:
    with pytest.raises(ClientError, match="Tasks not found: bank_nothing"):
        task_results(model[1], Tasks("bank_nothing", TASKS))


@torch.inference_mode()
def accuracy(served: ServedModel) -> float:
    rows = [json.loads(line) for line in (TASKS / "bank_topics.jsonl").read_text().splitlines()[:LIMIT]]
    return sum(_likeliest(served, row) == row["answer"] for row in rows) / len(rows)


def _likeliest(served: ServedModel, row: dict[str, Any]) -> int:
    question = f"A bank's customer writes: {row['question']}\nThe topic is:"
    start = len(served.tokenizer(question, add_special_tokens=False)["input_ids"])
    sums = []
    for choice in row["choices"]:
        ids = served.tokenizer(f"{question} {choice}", add_special_tokens=False)["input_ids"]
        logits = served.model(torch.tensor([ids])).logits[0].log_softmax(-1)
        sums.append(sum(logits[place - 1, ids[place]].item() for place in range(start, len(ids))))
    return max(range(len(sums)), key=sums.__getitem__)
