"""`neo model lineage`, and which models have seen a file."""

import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from neocloud.cli.commands.inference.lineage_tree import tree_lines
from neocloud.cli.output import Format, OutputOption, fields_table, show, warn
from neocloud.cli.resources.lookup import (
    MODELS,
    NOT_OFFERED,
    ProjectClient,
    ProjectOption,
    connect_to_project,
    names_of,
)
from neocloud.cli.storage.places import SCHEME
from neocloud.cli.terminal import echo, one_line
from neocloud.client.errors import ClientError
from neocloud.core import contract

if TYPE_CHECKING:
    from neocloud.messages.neocloud.tuning.v1 import Lineage, ListTrainedModelsResponse

LINEAGE = "neocloud.tuning.v1.LineageService"
FILE_ID = re.compile(r"file-[0-9a-f]{24}")
_SHA256 = re.compile(r"(sha256:)?[0-9a-fA-F]{64}")

NameArgument = Annotated[
    str, typer.Argument(help="Name or id of the model.", autocompletion=names_of(MODELS))
]


def lineage(
    context: typer.Context,
    name: NameArgument,
    project: ProjectOption = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """Show where a model comes from and what came of it: data, job, base, evaluation, deployments, tokens and
    cost, with digests.

    Examples:

      neo model lineage bank
      neo model lineage bank --output json
    """
    cloud = connect_to_project(context, project)
    model = cloud.find(MODELS, name)
    graph = lineage_of(cloud, model.metadata.id)
    if output is Format.TABLE:
        echo("\n".join(tree_lines(graph, model.metadata.id)))
        return
    show(output, contract.to_document(graph), fields_table(()))


def lineage_of(cloud: ProjectClient, model_id: str) -> "Lineage":
    return cloud.client.call(f"{LINEAGE}/GetLineage", {"id": model_id})


def models_trained_on(cloud: ProjectClient, file: str) -> "ListTrainedModelsResponse":
    """Return the models that have seen a file: an id, an object, a SHA-256, or a file of this machine."""
    request = {"parent_id": cloud.project, "file": known_name(file)}
    return cloud.client.call(f"{LINEAGE}/ListTrainedModels", request)


def warn_of_dependents(cloud: ProjectClient, file: str) -> None:
    """Name the models and jobs that depend on a file before it is deleted, as far as the caller may know."""
    try:
        found = models_trained_on(cloud, file)
    except ClientError as error:
        if error.code not in NOT_OFFERED:
            raise
        return
    if found.items:
        how = [f"{one_line(each.name)} ({each.relation})" for each in found.items]
        warn(f"These models have seen it, and can no longer be rebuilt without a copy: {', '.join(how)}")
    if found.job_ids:
        warn(f"Unfinished jobs use it, and fail unless they have read it: {', '.join(found.job_ids)}")


def known_name(file: str) -> str:
    """Return the name by which the cloud knows a file. A file of this machine is known by its bytes, in the
    form in which `neo tune` uploads it."""
    if FILE_ID.fullmatch(file) or _SHA256.fullmatch(file) or file.startswith(SCHEME):
        return file
    path = Path(file)
    if not path.is_file():
        raise ClientError(
            "INVALID_ARGUMENT",
            f"{file!r} is neither the id of a file, s3://BUCKET/KEY, a SHA-256 nor a file here",
            "Check the name",
        )
    return uploaded_digest(path)


def uploaded_digest(path: Path) -> str:
    """Return the SHA-256 of what `neo tune` uploads for a file."""
    from neocloud.cli.commands.tuning.data_file import as_jsonl  # noqa: PLC0415  httpx, for few commands

    with as_jsonl(path) as converted, converted.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
