"""`neo model push`: a model becomes an artifact in a registry of the cloud."""

from contextlib import ExitStack
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from neocloud.cli.output import Format, OutputOption, fields_table, say, show, size_text
from neocloud.cli.progress import stage
from neocloud.cli.registry.names import find_target
from neocloud.cli.resources.lookup import MODELS, ProjectClient, ProjectOption, connect_to_project, names_of
from neocloud.cli.storage.places import SCHEME, bucket_place_of
from neocloud.cli.storage.session import s3_session
from neocloud.client.errors import ClientError

if TYPE_CHECKING:
    from neocloud.messages.neocloud.inference.v1 import Model

ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A model of the cloud, a folder on this machine, or s3://BUCKET/FOLDER.",
        autocompletion=names_of(MODELS),
    ),
]
TargetArgument = Annotated[
    str,
    typer.Argument(
        metavar="REGISTRY/REPO:TAG", help="A registry by its name or registry_fqdn, a repository, and a tag."
    ),
]


def push(
    context: typer.Context,
    model: ModelArgument,
    target: TargetArgument,
    project: ProjectOption = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """Push a model or an adapter to a registry of the cloud, as an OCI artifact.

    The artifact has a layer for each file, with types of ModelPack, so that `oras pull` writes the same
    files. Files that the repository has are not sent again. A model of the cloud is pushed on the machine
    where the cloud runs; what a tuning job saved in a bucket, from anywhere.

    Examples:

      neo model push assistant team/assistant:v1
      neo model push ./support-adapter team/support:v1
      neo model push s3://bank-data/jobs/JOB_ID/model team/support:v2
      neo model add support team/support:v2 --base assistant
    """
    from neocloud.cli.registry import models  # noqa: PLC0415  httpx, for few commands
    from neocloud.cli.registry.client import RegistryClient  # noqa: PLC0415

    cloud = connect_to_project(context, project)
    name = find_target(cloud, target)
    with ExitStack() as stack:
        if model.startswith(SCHEME):
            s3 = stack.enter_context(s3_session(context, project))
            files, left_out = models.files_of_bucket(s3, bucket_place_of(model))
        else:
            files, left_out = models.files_of_folder(_folder_of(cloud, model))
        registry = stack.enter_context(RegistryClient(cloud, name))
        with stage(f"Push to {name}") as progress:
            pushed = models.push_model(registry, files, name.repository, progress)
    if left_out:
        say(f"Left out, since a model has no folders and no hidden files: {', '.join(left_out)}")
    document = {"name": str(name), "digest": pushed.digest, "files": pushed.files, "size_bytes": pushed.size}
    pairs = (
        ("Name", str(name)),
        ("Digest", pushed.digest),
        ("Files", pushed.files),
        ("Size", size_text(pushed.size)),
    )
    show(output, document, fields_table(pairs))
    say(f"Serve it: neo model add NAME {quote(target)}")


def _folder_of(cloud: ProjectClient, model: str) -> Path:
    folder = Path(model).expanduser()
    if not model.startswith(("/", ".", "~")):
        found = cloud.find_optional(MODELS, model)
        if found is not None:
            return _folder_of_model(cloud, found)
    if folder.is_dir():
        return folder
    raise ClientError(
        "NOT_FOUND",
        f"{model!r} is neither a model of the cloud nor a folder on this machine",
        "`neo model list` lists the models",
    )


def _folder_of_model(cloud: ProjectClient, model: "Model") -> Path:
    if not cloud.profile.home:
        raise ClientError(
            "INVALID_ARGUMENT",
            f"The files of {model.metadata.name} are on the machine of the cloud",
            "Run this there; or let its tuning job save it (neo tune --save-to), and push s3://BUCKET/FOLDER",
        )
    folder = model.spec.source.folder
    return Path(folder) if folder else Path(cloud.profile.home) / "models" / model.metadata.id
