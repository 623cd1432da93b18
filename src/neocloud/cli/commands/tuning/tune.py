"""`neo tune`: from a file of conversations to a fine-tuned model, in one command."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from neocloud.cli.commands.inference.price import PriceOption, parsed_price
from neocloud.cli.commands.tuning.config_file import ConfigOption, read_configuration
from neocloud.cli.commands.tuning.data_file import (
    as_jsonl,
    check_file,
    first_question,
    method_options,
    upload,
)
from neocloud.cli.commands.tuning.data_report import error_in, has_personal_data, read_data, with_estimate
from neocloud.cli.commands.tuning.data_view import show_data, show_report
from neocloud.cli.commands.tuning.job import (
    FollowingOption,
    evaluation_view,
    follow,
    get_job,
    require_success,
)
from neocloud.cli.commands.tuning.serving import check_serving, require_gate, serve
from neocloud.cli.commands.tuning.training_options import is_whole, training_spec
from neocloud.cli.lazy import Options, command_group
from neocloud.cli.output import (
    Format,
    JsonObject,
    OutputOption,
    fields_table,
    print_view,
    say,
    show,
    warn,
)
from neocloud.cli.progress import stage
from neocloud.cli.resources.lookup import CLUSTERS, MODELS, TUNING_JOBS, Cloud, ProjectClient
from neocloud.cli.resources.prices import price_of, show_tried, tried
from neocloud.cli.resources.shapes import first_possible_shape, with_first
from neocloud.cli.storage.places import SCHEME
from neocloud.cli.target import gateway_of
from neocloud.cli.terminal import echo
from neocloud.client.errors import ClientError
from neocloud.client.gateway import Gateway
from neocloud.core import contract

if TYPE_CHECKING:
    from neocloud.messages.neocloud.inference.v1 import Model
    from neocloud.messages.neocloud.tuning.v1 import FineTuningJob


ANSWER_TOKENS = 80
CREATE = f"{TUNING_JOBS}/Create"
NOT_UPLOADED = "file-not-uploaded"
"""Stands for a file in a trial, before it is uploaded."""
Shapes = Sequence[tuple[str, str]]

CPU_PLATFORM = "cpu-local"

app = command_group()


DataArgument = Annotated[
    str,
    typer.Argument(help="Conversations: JSONL, JSON, CSV or Parquet; or JSONL as s3://BUCKET/KEY."),
]
BaseOption = Annotated[str, typer.Option(metavar="MODEL", help="Model to start from.")]
ValidationOption = Annotated[
    str, typer.Option(help="Conversations to evaluate on, as DATA. Default: a tenth of the data.")
]
DryRunOption = Annotated[
    bool,
    typer.Option(
        "--dry-run", help="Show what is understood of the data, tokens, time and cost; create nothing."
    ),
]
PlatformOption = Annotated[
    str, typer.Option(help="Platform to train on. Default: one that this machine has.")
]
PresetOption = Annotated[str, typer.Option(help="CPUs, memory and GPUs. Default: the smallest that fits.")]
OnSlurmOption = Annotated[str, typer.Option(metavar="CLUSTER", help="Train as a job of this Slurm cluster.")]
NodesOption = Annotated[int, typer.Option(min=1, help="Number of the cluster's nodes to train on together.")]
SaveToOption = Annotated[
    str,
    typer.Option(
        metavar="s3://BUCKET/PREFIX", help="Also write the new model and the checkpoints to this folder."
    ),
]
ServeItOption = Annotated[
    bool, typer.Option("--serve", help="Serve base and new model, and send both a question.")
]
QuestionOption = Annotated[
    str, typer.Option(help="Question for --serve. Default: the first one in the data.")
]


@dataclass(frozen=True)
class _Serving:
    """Options about serving the new model once the job has ended."""

    serve_it: ServeItOption = False
    question: QuestionOption = ""
    price: PriceOption = ""
    following: FollowingOption = True

    def __post_init__(self) -> None:
        """Refuse options that do not go together, before anything starts."""
        if self.price and not self.serve_it:
            raise typer.BadParameter(
                "a price is that of the served model, so it needs --serve", param_hint="--price"
            )
        if self.serve_it and not self.following:
            raise typer.BadParameter(
                "the new model is served once the job has ended, so leave out --no-follow",
                param_hint="--serve",
            )
        if self.price:
            parsed_price(self.price, "--price")


NOTHING: JsonObject = {}


@app.command()
def tune(
    context: typer.Context,
    cloud: Cloud,
    data: DataArgument,
    base: BaseOption,
    validation: ValidationOption = "",
    training: Annotated[JsonObject, Options(training_spec)] = NOTHING,
    config: ConfigOption = "",
    platform: PlatformOption = "",
    preset: PresetOption = "",
    on_slurm: OnSlurmOption = "",
    nodes: NodesOption = 1,
    save_to: SaveToOption = "",
    serving: Annotated[_Serving, Options(_Serving)] = _Serving(),
    dry_run: DryRunOption = False,
    output: OutputOption = Format.TABLE,
) -> None:
    """Fine-tune a model: upload the data, train, compare with the base on held-out data.

    Data in a bucket are not uploaded: the job reads them with your rights. Ctrl-C leaves the job running.
    Options that are not given are chosen by the size of data and model.

    Examples:

      neo tune chats.jsonl --base tiny
      neo tune chats.jsonl --base tiny --dry-run
      neo tune chats.parquet --base qwen3-8b --suffix support --epochs 3 --serve
      neo tune chats.jsonl --base tiny --gate gate.json --serve
      neo tune chats.jsonl --base tiny --merge --no-follow
      neo tune preferences.jsonl --base tiny --method dpo
      neo tune tasks.jsonl --base tiny --method reinforcement --grader grader.json
      neo tune chats.jsonl --base tiny --full --dry-run
      neo tune chats.jsonl --base tiny --config s3://configs/bank.json
      neo tune chats.jsonl --base tiny --on-slurm research --nodes 2
      neo tune s3://data-sets/chats.jsonl --base tiny --save-to s3://data-sets/models
    """
    training = read_configuration(context, cloud.project, config).with_options(training, training_spec())
    model = cloud.find(MODELS, base)
    base_model = _base_of(cloud, model)
    if serving.serve_it:
        check_serving(cloud, base_model, serving.price, merge=is_whole(training))
    spec: JsonObject = {"model_id": model.metadata.id, "output": save_to, **training}
    if on_slurm:
        spec |= {"slurm_cluster_id": cloud.find(CLUSTERS, on_slurm).metadata.id, "nodes": nodes}
    with gateway_of(context, project=cloud.project) as gateway:
        shapes = [(platform, preset)] if on_slurm else list(_shapes(cloud, model, platform, preset))
        files = {"training_file": data, **({"validation_file": validation} if validation else {})}
        if dry_run:
            _show_trial(cloud, base_model, spec, shapes, files, output)
            return
        shapes = _possible(cloud, spec, shapes, files)
        spec |= {name: _uploaded(gateway, each, *_checks(spec, name, files)) for name, each in files.items()}
        job = _started(cloud, spec, shapes)
        if serving.following:
            job = follow(cloud, job.metadata.id)
            require_success(job)
        _print_result(job, output)
        require_gate(job, on_stderr=output is not Format.TABLE)
        if serving.serve_it:
            _serve_and_compare(gateway, cloud, base_model, job, serving, data, output)


def _serve_and_compare(
    gateway: Gateway,
    cloud: ProjectClient,
    base: "Model",
    job: "FineTuningJob",
    serving: _Serving,
    data: str,
    output: Format,
) -> None:
    """Serve base and new model, and print their answers to a question."""
    # In other formats stdout is the job alone, for programs.
    with nullcontext() if output is Format.TABLE else redirect_stdout(sys.stderr):
        base_name, new_name = names = serve(cloud, base, job, serving.price)
        _answers(gateway, names, serving.question or _first_question(data) or "Hello, who are you?")
        echo(f"Chat with it: neo chat {quote(new_name)} --compare {quote(base_name)}")


def _first_question(data: str) -> str:
    """Return that of a file here; "" for an object of a bucket."""
    return "" if data.startswith(SCHEME) else first_question(Path(data))


def _base_of(cloud: ProjectClient, model: "Model") -> "Model":
    """Return the base of an adapter; another model is its own."""
    base_id = model.spec.base_model_id
    return cloud.client.call(f"{MODELS}/Get", {"id": base_id}) if base_id else model


def _answers(gateway: Gateway, models: Sequence[str], question: str) -> None:
    """Print each model's answer to the question."""
    echo(f"Question: {question}")
    for model in models:
        body = {
            "model": model,
            "messages": [{"role": "user", "content": question}],
            "max_tokens": ANSWER_TOKENS,
            "temperature": 0,
        }
        answer = gateway.post("chat/completions", body)["choices"][0]["message"]["content"]
        echo(f"{model}: {answer.strip()}")


def _checks(spec: JsonObject, name: str, files: Mapping[str, str]) -> list[str]:
    """Return the options of the recipe that checks a file."""
    training = files["training_file"]
    found = ["--refuse-personal-data"] if spec.get("refuse_personal_data") else []
    found += method_options(spec)
    if name == "validation_file" and not training.startswith(SCHEME):
        found += ["--training", training]
    return found


def _uploaded(gateway: Gateway, data: str, *checks: str) -> str:
    """Return the id of an uploaded file. An object of a bucket stays where it is."""
    if data.startswith(SCHEME):
        return data
    file = Path(data)
    with as_jsonl(file, *checks) as path, stage(f"Upload {file.name}"):
        return upload(gateway, path)


def _shapes(cloud: ProjectClient, model: "Model", platform: str, preset: str) -> Iterator[tuple[str, str]]:
    """Yield the shapes to try: the given one, or else a GPU, then the CPU."""
    yield first_possible_shape(cloud, model, platform, preset)
    if not platform and not preset:
        yield first_possible_shape(cloud, model, CPU_PLATFORM, "")


def _possible(
    cloud: ProjectClient, spec: JsonObject, shapes: Shapes, files: Mapping[str, str]
) -> list[tuple[str, str]]:
    """Return the shapes from the first one on which the job would be accepted, before its data are uploaded.

    Raises ClientError as its creation would: no right, no quota, no room.
    """
    for each in files.values():
        if not each.startswith(SCHEME):
            check_file(Path(each))
    wanted, assumed = _before_upload(spec, files)

    try:
        _, number = with_first(
            shapes, lambda shape: tried(cloud.client, CREATE, _request(cloud, wanted, shape), assumed)
        )
        return list(shapes[number:])
    except ClientError as error:
        if error.code != "UNIMPLEMENTED":  # a cloud of before, which checks when the job is created
            raise
        return list(shapes)


def _show_trial(
    cloud: ProjectClient,
    base: "Model",
    spec: JsonObject,
    shapes: Shapes,
    files: Mapping[str, str],
    output: Format,
) -> None:
    """Show what is understood of the data, and the job that would be created. Raises ClientError where it
    would be refused."""
    data = read_data(files, spec)
    if output is Format.TABLE:
        show_data(data)
    wanted, assumed = _before_upload(spec, files)
    job, _ = with_first(
        shapes, lambda shape: tried(cloud.client, CREATE, _request(cloud, wanted, shape), assumed)
    )
    price = price_of(cloud.client, CREATE, job)
    report = with_estimate(cloud, base.metadata.id, job.spec, data, files["training_file"], price)
    if output is Format.TABLE:
        show_report(report)
    show_tried(cloud.client, job, price, output, report.document())
    if error := error_in(data) or report.tokens.get("state") == "failed" and report.tokens["reason"]:
        raise ClientError("INVALID_ARGUMENT", f"The data cannot be trained on: {error}", "Correct them")
    if spec.get("refuse_personal_data") and has_personal_data(data):
        raise ClientError(
            "INVALID_ARGUMENT",
            "The data hold personal data, which --refuse-personal-data refuses",
            "Remove them, or leave the option out",
        )


def _before_upload(spec: JsonObject, files: Mapping[str, str]) -> tuple[JsonObject, list[str]]:
    """Return the spec without files that are to be uploaded, and the paths of their fields."""
    uploads = [name for name, each in files.items() if not each.startswith(SCHEME)]
    return {**spec, **files, **dict.fromkeys(uploads, NOT_UPLOADED)}, [f"spec.{name}" for name in uploads]


def _started(cloud: ProjectClient, spec: JsonObject, shapes: Shapes) -> "FineTuningJob":
    """Start the job on the first shape that this machine has."""
    operation, _ = with_first(shapes, lambda shape: cloud.client.call(CREATE, _request(cloud, spec, shape)))
    say(f"Job {operation.resource_id}")
    return get_job(cloud, operation.resource_id)


def _request(cloud: ProjectClient, spec: JsonObject, shape: JsonObject) -> JsonObject:
    return {"metadata": {"parent_id": cloud.project}, "spec": {**spec, **shape}}


def _print_result(job: "FineTuningJob", output: Format) -> None:
    for text in job.status.warnings:
        warn(text)
    if output is not Format.TABLE:
        show(output, contract.to_document(job), fields_table(()))
        return
    if not job.status.fine_tuned_model:
        echo(f"Follow it: neo tuning job events {job.metadata.id} --follow")
        return
    echo(f"New model: {job.status.fine_tuned_model}")
    if job.status.output:
        echo(f"In the bucket: {job.status.output}")
    print_view(evaluation_view(job))
