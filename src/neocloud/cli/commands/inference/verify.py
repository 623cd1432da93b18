"""`neo model verify`: ask a model that is served the questions of its quality test."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from neocloud.cli.commands.inference.catalogue import OfferedModel
from neocloud.cli.commands.inference.price import callable_name
from neocloud.cli.output import Format, JsonObject, OutputOption, show, table
from neocloud.cli.progress import stage
from neocloud.cli.resources.lookup import (
    DEPLOYMENTS,
    MODELS,
    ProjectOption,
    connect_to_project,
    names_of,
)
from neocloud.cli.target import gateway_of
from neocloud.cli.terminal import echo
from neocloud.client.errors import ClientError
from neocloud.core.known_answers import LARGEST_FILE_BYTES, Question, is_right, parse_questions
from neocloud.messages.neocloud.inference.v1 import QualityTest

if TYPE_CHECKING:
    from neocloud.messages.neocloud.inference.v1 import Model

ANSWER_TOKENS = 32
SHOWN_CHARACTERS = 80
EXIT_WRONG = 1
STATE = QualityTest.State

NameArgument = Annotated[
    str, typer.Argument(help="Name or id of the model.", autocompletion=names_of(MODELS))
]


def verify(
    context: typer.Context,
    name: NameArgument,
    questions: Annotated[
        Path | None,
        typer.Option(help="JSON file of questions, instead of the model's own; see `neo model add`."),
    ] = None,
    project: ProjectOption = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """Ask a model that is served the questions of its quality test, through the gateway.

    The answers are greedy and short. The exit code is 1 where one is wrong. The test that ran when the model
    was added is shown by `neo model get`.

    Examples:

      neo model verify smollm2
      neo model verify assistant --questions questions.json
    """
    from neocloud.cli.evaluation.client import Model as ServedModel  # noqa: PLC0415  httpx, for few commands

    cloud = connect_to_project(context, project)
    model = cloud.find(MODELS, name)
    asked = read_questions(questions) if questions else _own(model)
    called = callable_name(model.metadata.name, cloud.list_all(DEPLOYMENTS))
    if not called:
        raise ClientError(
            "FAILED_PRECONDITION",
            f"{model.metadata.name} is not served, so it answers no questions",
            f"Serve it: neo deploy {quote(model.spec.base_model_id or model.metadata.name)}",
        )
    rows: list[JsonObject] = []
    with gateway_of(context, project=cloud.project) as gateway, stage(f"Ask {called}") as detail:
        served = ServedModel(gateway, called)
        for each in asked:
            said = served.answer([{"role": "user", "content": each.question}], ANSWER_TOKENS).text
            known = {"question": each.question, "answers": each.answers}
            rows.append({**known, "answer": said, "is_right": is_right(said, each.answers)})
            detail(f"{len(rows)} of {len(asked)}")
    right = sum(row["is_right"] for row in rows)
    shown = [
        (
            row["question"],
            " ".join(row["answer"].split())[:SHOWN_CHARACTERS],
            "yes" if row["is_right"] else f"no: {' or '.join(row['answers'])}",
        )
        for row in rows
    ]
    document = {"model": called, "asked": len(rows), "right": right, "answers": rows}
    show(output, document, table(["QUESTION", "ANSWER", "RIGHT"], shown))
    if output is Format.TABLE:
        echo(f"{right} of {len(rows)} answers of {called} are right.")
    if right < len(rows):
        raise typer.Exit(EXIT_WRONG)


def _own(model: "Model") -> Sequence[Question]:
    found = [Question(each.question, list(each.answers)) for each in model.spec.questions]
    if not found:
        raise ClientError(
            "FAILED_PRECONDITION",
            f"{model.metadata.name} was added without questions",
            f"Name a file: neo model verify {quote(model.metadata.name)} --questions FILE",
        )
    return found


def questions_of(file: Path | None, offered: OfferedModel | None) -> Sequence[JsonObject]:
    """Return the questions of the spec: those of the file, else of the catalogue's model."""
    if file is not None:
        return [{"question": each.question, "answers": each.answers} for each in read_questions(file)]
    known: Mapping[str, Sequence[str]] = offered.questions if offered else {}
    return [{"question": question, "answers": list(words)} for question, words in known.items()]


def read_questions(file: Path) -> Sequence[Question]:
    """Return the questions of a file. Raises ClientError with the first thing that is wrong in it."""
    try:
        with file.open("rb") as opened:
            return parse_questions(opened.read(LARGEST_FILE_BYTES + 1))
    except (OSError, ValueError) as error:
        example = '[{"question": "How many days are in a week?", "answers": ["7", "seven"]}]'
        raise ClientError(
            "INVALID_ARGUMENT", f"{file} cannot be used: {error}", f"Write a list such as {example}"
        ) from error


def quality_text(model: "Model") -> str:
    """Return the result of the test that ran when the model was added."""
    found = model.status.quality
    if found.state == STATE.Value("DONE"):
        wrong = "; ".join(f"{each.question} {each.answer}" for each in found.wrong)
        return f"{found.right} of {found.asked} answers right{f'; wrong: {wrong}' if wrong else ''}"
    if found.state == STATE.Value("NOT_RUN"):
        return f"not_run: {found.message}"
    return "its questions are being asked" if model.spec.questions else ""
