"""Questions of a quality test in `neo model`: those of the catalogue, those of a file, and the result."""

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from neocloud.cli.commands.inference.catalogue import CATALOGUE
from neocloud.core import contract
from tests import ROOT
from tests.fast.cli.conftest import Neo
from tests.fast.cli.fake_control_plane import PROJECT, FakeServer, operation

INFERENCE = "neocloud.inference.v1"
MODEL_ID = "inferencemodel-e00bank"
ASKED = [{"question": "How many days are in a week?", "answers": ["7", "seven"]}]


def model(**status: Any) -> Any:
    document = {
        "metadata": {"id": MODEL_ID, "parent_id": PROJECT, "name": "bank"},
        "spec": {"questions": ASKED},
        "status": {"state": "READY", **status},
    }
    return contract.from_dict(contract.message(f"{INFERENCE}.Model"), document)


def test_the_catalogue_asks_what_the_conversion_asked() -> None:
    tree = ast.parse((ROOT / "images" / "smollm2" / "convert.py").read_text())
    (asked,) = (
        ast.literal_eval(each.value)
        for each in tree.body
        if isinstance(each, ast.Assign) and getattr(each.targets[0], "id", "") == "QUESTIONS"
    )
    known = CATALOGUE["smollm2"].questions
    assert {question: words[0].lower() for question, words in known.items()} == asked


def test_a_model_is_added_with_the_questions_of_a_file(
    signed_in: Neo, cloud: FakeServer, tmp_path: Path
) -> None:
    file = tmp_path / "questions.json"
    file.write_text(json.dumps(ASKED))
    cloud.serve(f"{INFERENCE}.ModelService/Create", operation(MODEL_ID))
    cloud.serve(f"{INFERENCE}.ModelService/Get", model())
    ran = signed_in("model", "add", "bank", "s3://models/bank", "--questions", str(file))
    assert ran.code == 0, ran.err
    (request,) = cloud.asked(f"{INFERENCE}.ModelService/Create")
    (question,) = request.spec.questions
    assert (question.question, list(question.answers)) == (ASKED[0]["question"], ["7", "seven"])


def test_a_file_that_is_none_adds_nothing(signed_in: Neo, cloud: FakeServer, tmp_path: Path) -> None:
    file = tmp_path / "questions.json"
    file.write_text('[{"question": "a?"}]')
    ran = signed_in("model", "add", "bank", "s3://models/bank", "--questions", str(file))
    assert ran.code != 0 and "cannot be used" in ran.err and "answers" in ran.err
    assert not cloud.asked(f"{INFERENCE}.ModelService/Create")


@pytest.mark.parametrize(
    ("quality", "shown"),
    [
        ({}, "its questions are being asked"),
        ({"state": "NOT_RUN", "message": "it has more than 8 GiB"}, "not_run: it has more than 8 GiB"),
        (
            {"state": "DONE", "asked": 2, "right": 1, "wrong": [{"question": "a?", "answer": "b"}]},
            "1 of 2 answers right; wrong: a? b",
        ),
    ],
)
def test_the_result_is_shown(signed_in: Neo, cloud: FakeServer, quality: dict[str, Any], shown: str) -> None:
    cloud.serve(f"{INFERENCE}.ModelService/GetByName", model(quality=quality) if quality else model())
    assert shown in " ".join(signed_in("model", "get", "bank").out.split())


def test_a_model_that_is_not_served_cannot_be_verified(signed_in: Neo, cloud: FakeServer) -> None:
    cloud.serve(f"{INFERENCE}.ModelService/GetByName", model())
    cloud.serve(
        f"{INFERENCE}.DeploymentService/List", contract.method(f"{INFERENCE}.DeploymentService/List").output()
    )
    ran = signed_in("model", "verify", "bank")
    assert ran.code not in (0, 1) or "is not served" in ran.err
    assert "neo deploy bank" in ran.err
