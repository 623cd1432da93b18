"""`neo evaluate`: compare two models that are served through the gateway."""

import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from neocloud.cli.evaluation.client import Model
from neocloud.cli.evaluation.conversations import (
    Conversation,
    choose_questions,
    last_questions,
    read_conversations,
)
from neocloud.cli.evaluation.gate import EXIT_GATE, read_gate, show_rules, verdict_document
from neocloud.cli.evaluation.judge import Judged, judge_answers
from neocloud.cli.evaluation.metrics import Measured, Metric, Plan, measure
from neocloud.cli.evaluation.report import report, report_view
from neocloud.cli.evaluation.tasks import Tasks, run_tasks, show_tasks
from neocloud.cli.lazy import Options, command_group
from neocloud.cli.output import Format, JsonObject, OutputOption, say, show, warn
from neocloud.cli.progress import stage
from neocloud.cli.storage.places import SCHEME, bucket_place_of
from neocloud.cli.storage.session import s3_session
from neocloud.cli.target import gateway_of
from neocloud.client.errors import ClientError
from neocloud.core.evaluation_gate import METRICS, Gate, Verdict, decide

USUAL = (Metric.PERPLEXITY, Metric.GENERATION, Metric.SPEED)
MEASURED_BY = {
    "perplexity": Metric.PERPLEXITY,
    "accuracy": Metric.ACCURACY,
    "tokens_per_second": Metric.SPEED,
}
"""The metrics that give scores of a gate; the other scores are of generated answers."""

app = command_group()


BaseOption = Annotated[str, typer.Option(help="Model to compare with.")]
CandidateOption = Annotated[str, typer.Option(help="Model to evaluate, e.g. the fine-tuned one.")]
DataOption = Annotated[
    str,
    typer.Option(
        help="Test conversations as JSONL, a path or s3://BUCKET/KEY, used in the training of neither model."
    ),
]
LimitOption = Annotated[
    int, typer.Option(min=0, help="Number of conversations to use, drawn at random; 0: all.")
]
MetricsOption = Annotated[list[Metric] | None, typer.Option(help="Metric to measure; repeatable.")]
SamplesOption = Annotated[int, typer.Option(min=1, help="Number of answers to generate.")]
ShowSamplesOption = Annotated[
    int, typer.Option("--show", min=0, help="Number of these answers in the report.")
]
MaxNewTokensOption = Annotated[int, typer.Option(min=1, help="Maximum length of an answer.")]
BatchOption = Annotated[int, typer.Option(min=1, max=256, help="Number of concurrent requests.")]
ContextLengthOption = Annotated[
    int, typer.Option(min=2, help="Number of tokens of each conversation to evaluate.")
]
SeedOption = Annotated[int, typer.Option(help="Seed for drawing samples.")]
TasksOption = Annotated[
    str, typer.Option(help="lm-eval tasks to run instead, by the names in --task-folder.", metavar="NAMES")
]
TaskFolderOption = Annotated[
    Path | None, typer.Option(help="Folder with the YAML and JSONL files of --tasks.")
]
TokenizerOption = Annotated[
    str, typer.Option(help="Tokenizer of the models, for tasks scored by likelihood.", metavar="FOLDER")
]
GatewayOption = Annotated[
    str,
    typer.Option(help="URL of another OpenAI-compatible API, with its key in OPENAI_API_KEY.", metavar="URL"),
]
GateOption = Annotated[
    Path | None,
    typer.Option(
        help="JSON file with rules on the scores. The exit code is 8 when the candidate fails one.",
        metavar="FILE",
    ),
]
JudgeOption = Annotated[
    str, typer.Option(help="Model that judges the answers of both, pair by pair.", metavar="MODEL")
]
JudgeGatewayOption = Annotated[str, typer.Option(help="URL of another API for the judge.", metavar="URL")]
CandidateGatewayOption = Annotated[
    str, typer.Option(help="URL of another API for the candidate only.", metavar="URL")
]


@dataclass(frozen=True)
class _Sampling:
    """Options about what is asked."""

    limit: LimitOption = 0
    metrics: MetricsOption = None
    samples: SamplesOption = 32
    show_samples: ShowSamplesOption = 5
    max_new_tokens: MaxNewTokensOption = 128
    batch: BatchOption = 16
    context_length: ContextLengthOption = 1024
    seed: SeedOption = 42

    def plan(self, conversations: Sequence[Conversation], needed: frozenset[Metric]) -> Plan:
        """Return the requests to make; `needed` is measured beside what was asked for."""
        return Plan(
            conversations=conversations,
            questions=choose_questions(conversations, self.samples, self.seed),
            labels=last_questions(conversations),
            metrics=frozenset(self.metrics or USUAL) | needed,
            max_new_tokens=self.max_new_tokens,
            max_label_tokens=24,
            batch=self.batch,
            context=self.context_length,
            seed=self.seed,
        )


@dataclass(frozen=True)
class _Deciding:
    """Options about the verdict on the candidate."""

    gate: GateOption = None
    judge: JudgeOption = ""
    judge_gateway: JudgeGatewayOption = ""

    def rules(self, tasks: str) -> Gate | None:
        """Read the gate, before anything is measured. Raises ClientError."""
        if self.judge and tasks:
            why = "Tasks of lm-eval have no answers to judge"
            raise ClientError("INVALID_ARGUMENT", why, "Leave out --judge")
        if self.judge_gateway and not self.judge:
            raise ClientError(
                "INVALID_ARGUMENT", "--judge-gateway is that of a judge", "Name it with --judge"
            )
        if self.gate is None:
            return None
        if tasks:
            return read_gate(self.gate, (), tasks.split(","))
        return read_gate(self.gate, METRICS if self.judge else METRICS.keys() - {"judge_preference"})

    def metrics(self, rules: Gate | None) -> frozenset[Metric]:
        """Return what has to be measured for the rules and for the judge."""
        asked = (
            {MEASURED_BY.get(name, Metric.GENERATION) for name in rules.metrics} if rules else set[Metric]()
        )
        return frozenset(asked | {Metric.GENERATION}) if self.judge else frozenset(asked)


@app.command()
def evaluate(
    context: typer.Context,
    base: BaseOption,
    candidate: CandidateOption,
    data: DataOption = "",
    sampling: Annotated[_Sampling, Options(_Sampling)] = _Sampling(),
    tasks: TasksOption = "",
    task_folder: TaskFolderOption = None,
    tokenizer: TokenizerOption = "",
    gateway: GatewayOption = "",
    candidate_gateway: CandidateGatewayOption = "",
    deciding: Annotated[_Deciding, Options(_Deciding)] = _Deciding(),
    output: OutputOption = Format.TABLE,
) -> None:
    """Compare two served models by perplexity, answers and speed, as a table or as JSON for jq.

    Ctrl-C keeps the results so far: the report is marked incomplete and the exit code is 130.

    Examples:

      neo evaluate --base tiny --candidate assistant --data chats_test.jsonl
      neo evaluate --base tiny --candidate assistant --data s3://data-sets/chats_test.jsonl
      neo evaluate --base tiny --candidate assistant --data chats_test.jsonl -o json | jq .comparison
      neo evaluate --base tiny --candidate assistant --data chats_test.jsonl --gate gate.json
      neo evaluate --base tiny --candidate assistant --tasks replies --task-folder ./tasks
    """
    places = (gateway, candidate_gateway or gateway)
    rules = deciding.rules(tasks)
    if tasks:
        with gateway_of(context, places[0]) as one, gateway_of(context, places[1]) as other:
            chosen = Tasks(tasks, task_folder, tokenizer, sampling.limit)
            made = run_tasks(Model(one, base), Model(other, candidate), chosen)
        verdict = _verdict(made, rules)
        show_tasks(made, (base, candidate), output)
        _require_passed(verdict, output)
        return
    if not data:
        raise ClientError("INVALID_ARGUMENT", "No test data was given", "Give --data, or --tasks")
    with data_file(context, data) as path:
        conversations = read_conversations(path, sampling.limit, sampling.seed, data)
    plan = sampling.plan(conversations, deciding.metrics(rules))
    with gateway_of(context, places[0]) as one, gateway_of(context, places[1]) as other:
        models = (Model(one, base), Model(other, candidate))
        found, is_complete = _measured(models, plan)
    judged = Judged()
    if deciding.judge and is_complete:
        with gateway_of(context, deciding.judge_gateway or gateway) as third:
            is_complete = _judge(Model(third, deciding.judge), plan, found, judged)
    facts: JsonObject = {"base": base, "candidate": candidate, "data": data, "is_complete": is_complete}
    if deciding.judge:
        facts["judge"] = judged.document(deciding.judge)
    made = report(plan, *found, sampling.show_samples, facts, judged.preferences)
    verdict = _verdict(made, rules)
    _print(made, found, models, output)
    for remark in judged.remarks:
        warn(f"{deciding.judge}: {remark}")
    if not is_complete:
        raise typer.Exit(130)
    _require_passed(verdict, output)


def _judge(judge: Model, plan: Plan, found: tuple[Measured, Measured], judged: Judged) -> bool:
    """Fill `judged`, and return whether it is complete."""
    answers = [each.answers for each in found]
    try:
        with stage(f"Judging by {judge.name}") as detail:
            judge_answers(judge, plan.questions, (answers[0], answers[1]), plan.batch, judged, detail)
    except KeyboardInterrupt:
        judge.gateway.close()
        return False
    return True


def _verdict(made: JsonObject, gate: Gate | None) -> Verdict | None:
    """Return the verdict of the gate, which the report then has too."""
    if gate is None:
        return None
    verdict = decide(made, gate)
    made["details"]["gate"] = verdict_document(verdict)
    return verdict


def _require_passed(verdict: Verdict | None, output: Format) -> None:
    """Print the verdict, and end with an exit code of its own where a rule failed."""
    if verdict is None:
        return
    show_rules(verdict.rules, on_stderr=output is not Format.TABLE)
    if not verdict.passed:
        raise typer.Exit(EXIT_GATE)


def _measured(models: tuple[Model, Model], plan: Plan) -> tuple[tuple[Measured, Measured], bool]:
    """Return the results of both models, and whether they are complete."""
    found = (Measured(), Measured())
    try:
        for model, measured in zip(models, found, strict=True):
            with stage(f"Measuring {model.name}") as detail:
                measure(model, plan, measured, detail)
    except KeyboardInterrupt:
        for model in models:
            model.gateway.close()
        return found, False
    for model, measured in zip(models, found, strict=True):
        if measured.is_empty:
            why = next(iter(measured.errors or measured.remarks), "no request was sent")
            raise ClientError("UNAVAILABLE", f"Nothing could be measured of {model.name}: {why}")
    return found, True


def compared(comparison: JsonObject) -> str:
    """Return the comparison in words: the keys are those of the published solution, with their signs."""
    words = {
        "perplexity": ("Perplexity", "fell", "rose"),
        "speed": ("Speed", "grew", "fell"),
        "message_length": ("Length of answers", "grew", "fell"),
    }
    parts = [
        f"{title} {more if comparison[key] >= 0 else less} by {abs(comparison[key]):.1f} %"
        for key, (title, more, less) in words.items()
        if comparison.get(key) is not None
    ]
    return f"Candidate against base: {'; '.join(parts)}."


def _print(
    made: JsonObject, found: tuple[Measured, Measured], models: tuple[Model, Model], output: Format
) -> None:
    names = [model.name for model in models]
    if names[0] == names[1]:
        names = ["base", "candidate"]
    show(output, made, report_view(made, names), empty="Nothing was measured.")
    for model, measured in zip(models, found, strict=True):
        for remark in measured.remarks:
            warn(f"{model.name}: {remark}.")
        for error, count in measured.errors.items():
            warn(f"{model.name}: {count} of its requests failed: {error}")
    if not made["details"]["is_complete"]:
        warn("interrupted: the report contains only the results so far.")
    if output is Format.TABLE and made["comparison"]:
        say(f"\n{compared(made['comparison'])}")
    worse = made["details"]["regressions"]
    if output is Format.TABLE and worse["count"]:
        say(f"{worse['count']} of {worse['among']} answers got worse; -o json lists them with their scores.")


LARGEST_BYTES = 5 * 10**9
"""The same limit as for data of fine-tuning jobs."""


@contextmanager
def data_file(context: typer.Context, data: str) -> Generator[Path]:
    """Yield the path of the data; a copy of an object, with its checksum verified, while the context lasts.

    Raises ClientError.
    """
    if not data.startswith(SCHEME):
        yield Path(data)
        return
    from neocloud.cli.storage.streams import download_stream  # noqa: PLC0415  botocore takes a while to load

    place = bucket_place_of(data)
    if place.is_folder:
        raise ClientError("INVALID_ARGUMENT", f"{data} is a folder", "Name an object: s3://BUCKET/KEY")
    with tempfile.NamedTemporaryFile(prefix="neo-evaluate-") as file:
        with s3_session(context) as s3:
            download_stream(s3, place, file, LARGEST_BYTES)
        yield Path(file.name)
