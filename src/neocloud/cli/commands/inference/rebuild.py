"""`neo model rebuild`: train a model again from what was recorded, and compare the weights."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from neocloud.cli.commands.inference.lineage import NameArgument, lineage_of, uploaded_digest
from neocloud.cli.commands.tuning.job import FollowingOption, follow, get_job, require_success
from neocloud.cli.output import Format, JsonObject, OutputOption, fields_table, say, show
from neocloud.cli.progress import stage
from neocloud.cli.resources.lookup import MODELS, TUNING_JOBS, Cloud, ProjectClient
from neocloud.cli.storage.places import SCHEME
from neocloud.cli.target import gateway_of
from neocloud.cli.terminal import echo
from neocloud.client.errors import ClientError
from neocloud.core import contract

if TYPE_CHECKING:
    from neocloud.client.gateway import Gateway
    from neocloud.messages.neocloud.inference.v1 import Model
    from neocloud.messages.neocloud.tuning.v1 import FileDigest, TrainingRecord

DEFAULT_SEED = 42
DIFFERENT = 1
"""The exit code where the new weights are others."""
DataOption = Annotated[
    Path | None,
    typer.Option(help="The training file, where the cloud has it no more; checked by its SHA-256."),
]
ValidationOption = Annotated[Path | None, typer.Option(help="The validation file, likewise.")]


def rebuild(
    context: typer.Context,
    cloud: Cloud,
    name: NameArgument,
    data: DataOption = None,
    validation: ValidationOption = None,
    following: FollowingOption = True,
    output: OutputOption = Format.TABLE,
) -> None:
    """Train a model again from the same data, base, settings and seed, and compare the weights.

    The new model gets a name of its own; the old one stays. On the same machine, with the same recipe and
    packages, the weights are the same to the last bit. Where they are not, the differences of the two jobs
    are printed, and the exit code is 1.

    Examples:

      neo model rebuild tiny:ft-bank-1a2b3c4d
      neo model rebuild tiny:ft-bank-1a2b3c4d --data chats.jsonl
    """
    model = cloud.find(MODELS, name)
    graph = lineage_of(cloud, model.metadata.id)
    if not graph.HasField("record"):
        reasons = " ".join(graph.notices) or "It was added, or made by an earlier release."
        raise ClientError("NOT_FOUND", f"What {name} was trained on is not recorded, or not shown. {reasons}")
    _check_base(cloud, graph.record)
    with gateway_of(context, project=cloud.project) as gateway:
        files = dict(_files(gateway, graph.record, {"training_file": data, "validation_file": validation}))
    request = {"metadata": {"parent_id": cloud.project}, "spec": {**spec_of(graph.record), **files}}
    job_id = cloud.client.call(f"{TUNING_JOBS}/Create", request).resource_id
    say(f"Job {job_id}")
    if not following:
        echo(f"Follow it: neo tuning job events {job_id} --follow")
        return
    job = follow(cloud, job_id)
    require_success(job)
    again = cloud.client.call(f"{MODELS}/Get", {"id": get_job(cloud, job_id).status.fine_tuned_model_id})
    _report(cloud, graph.record, model, again, output)


def _check_base(cloud: ProjectClient, record: "TrainingRecord") -> None:
    """Raise ClientError unless the base is there, with the weights that it had."""
    base = record.base
    found = cloud.find_optional(MODELS, base.id) if base.id else None
    if found is None:
        raise ClientError(
            "NOT_FOUND",
            f"The base {base.name or base.id} is not in this cloud any more",
            f"Add weights with the SHA-256 {base.digest}, and train on them: neo tune --base",
        )
    if found.status.digest != base.digest:
        raise ClientError(
            "FAILED_PRECONDITION", f"The base {base.name} has other weights now: {found.status.digest}"
        )


def spec_of(record: "TrainingRecord") -> JsonObject:
    """Return the spec of a job that does the same, with all values that were chosen by the first one."""
    spec: JsonObject = contract.to_document(record.spec)
    used: JsonObject = contract.to_document(record.hyperparameters)
    used.pop("learning_rate_multiplier", None)  # the rate that was used contains it
    spec |= {
        "model_id": record.base.id,
        "seed": record.spec.seed or DEFAULT_SEED,
        "hyperparameters": {each: value for each, value in used.items() if value is not None},
        "output": "",
    }
    return {each: value for each, value in spec.items() if value not in (None, "")}


def _files(
    gateway: "Gateway", record: "TrainingRecord", given: Mapping[str, Path | None]
) -> Iterator[tuple[str, str]]:
    """Yield the files to train on. Raises ClientError where one is gone, or has other bytes."""
    digests = {"training_file": record.training_data, "validation_file": record.validation_data}
    for name, path in given.items():
        file: str = getattr(record.spec, name)
        if not file:
            continue
        if path is not None:
            yield name, _upload(gateway, path, digests[name])
        elif not file.startswith(SCHEME):
            _check_file(gateway, file, name, digests[name])


def _upload(gateway: "Gateway", path: Path, recorded: "FileDigest") -> str:
    from neocloud.cli.commands.tuning.data_file import as_jsonl, upload  # noqa: PLC0415  httpx, for few commands

    found = uploaded_digest(path)
    if recorded.sha256 and found != recorded.sha256:
        raise ClientError(
            "INVALID_ARGUMENT",
            f"{path} is another file: its SHA-256 is {found}, and {recorded.sha256} was trained on",
        )
    with as_jsonl(path) as converted, stage(f"Upload {path.name}"):
        return upload(gateway, converted)


def _check_file(gateway: "Gateway", file: str, name: str, recorded: "FileDigest") -> None:
    try:
        gateway.get(f"files/{file}")
    except ClientError as error:
        if error.code != "NOT_FOUND":
            raise
        option = "--data" if name == "training_file" else "--validation"
        raise ClientError(
            "NOT_FOUND",
            f"The {name.replace('_', ' ')} {file} was deleted",
            f"Give the file with the SHA-256 {recorded.sha256 or '(not recorded)'}: {option} FILE",
        ) from error


def _report(
    cloud: ProjectClient, first: "TrainingRecord", model: "Model", again: "Model", output: Format
) -> None:
    """Print whether the weights are the same, and else what differs. Raises Exit where they are not."""
    is_same = bool(again.status.digest) and again.status.digest == model.status.digest
    second = lineage_of(cloud, again.metadata.id).record
    found = {} if is_same else dict(_differences(_known(first), _known(second)))
    document = {
        "model": model.metadata.name,
        "rebuilt": again.metadata.name,
        "digest": model.status.digest,
        "rebuilt_digest": again.status.digest,
        "is_same": is_same,
        "differences": {each: list(values) for each, values in found.items()},
    }
    pairs = [(each, f"{old or '-'} -> {new or '-'}") for each, (old, new) in found.items()]
    if output is not Format.TABLE:
        show(output, document, fields_table(()))
    elif is_same:
        echo(f"{again.metadata.name} has the same weights: SHA-256 {again.status.digest}")
    else:
        say(f"{again.metadata.name} has other weights than {model.metadata.name}.")
        nothing = "Nothing that is recorded differs: the training is not deterministic on this machine."
        show(output, document, fields_table(pairs), empty=nothing)
        say(f"Remove it: neo model delete {quote(again.metadata.name)}")
    if not is_same:
        raise typer.Exit(DIFFERENT)


def _known(record: "TrainingRecord") -> dict[str, str]:
    """Return the facts that the weights depend on, as far as they were recorded."""
    description = record.description
    return {
        "training data": record.training_data.sha256,
        "validation data": record.validation_data.sha256,
        "base": record.base.digest,
        "recipe": description.recipe_sha256,
        "nodes": str(description.node_count or ""),
        "processes": str(description.processes or ""),
        "threads": description.threads,
        "processor": description.processor,
        "device": description.device,
        **{f"package {name}": version for name, version in sorted(description.packages.items())},
        **{f"setting {name}": value for name, value in sorted(description.settings.items())},
    }


def _differences(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[tuple[str, tuple[str, str]]]:
    for name in {**old, **new}:
        values = old.get(name, ""), new.get(name, "")
        if values[0] != values[1]:
            yield name, values
