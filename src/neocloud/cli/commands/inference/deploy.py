"""`neo deploy`: serve a model, and say how to call it."""

import re
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer

from neocloud.cli.commands.inference.lookup import (
    CLUSTERS,
    DEPLOYMENT_STATE,
    DEPLOYMENTS,
    MODELS,
    Place,
    ProjectOption,
    find,
    open_place,
)
from neocloud.cli.commands.inference.shapes import possible_shapes
from neocloud.cli.lazy import command_group
from neocloud.cli.output import Format, OutputOption, fields_table, say, show
from neocloud.cli.progress import stage
from neocloud.cli.terminal import echo
from neocloud.client.errors import ClientError
from neocloud.client.gateway import gateway_address
from neocloud.core import contract

TASK = contract.enum("neocloud.inference.v1.DeploymentSpec.Task")
START_TIMEOUT_SECONDS = 3600.0
_NOT_HERE = frozenset({"RESOURCE_EXHAUSTED", "INVALID_ARGUMENT"})
"""What the cloud answers when it has no such GPU, or when its memory does not hold the model."""
_RANGE = re.compile(r"(?P<least>\d{1,2})(\.\.(?P<most>\d{1,2}))?")

app = command_group()


class Task(StrEnum):
    GENERATE = "generate"
    EMBED = "embed"


@app.command()
def deploy(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="Name or id of the model.")],
    name: Annotated[str, typer.Option(help="Of the deployment. Default: made of the model's.")] = "",
    fast: Annotated[
        bool, typer.Option("--fast", help='The flavour for few requests at a time; its names end in "-fast".')
    ] = False,
    replicas: Annotated[
        str, typer.Option(metavar="MIN..MAX", help="How many; 0..N sleeps while nobody asks.")
    ] = "1..1",
    platform: Annotated[
        str, typer.Option(help="Platform of a replica. Default: one that this machine has.")
    ] = "",
    preset: Annotated[
        str, typer.Option(help="Its CPUs, memory and GPUs. Default: the smallest that fits.")
    ] = "",
    on_slurm: Annotated[
        str, typer.Option(metavar="CLUSTER", help="Run replicas as jobs of this Slurm cluster.")
    ] = "",
    cpus: Annotated[int, typer.Option(help="Of a replica on a cluster.")] = 0,
    memory: Annotated[int, typer.Option(metavar="GIB", help="Of a replica on a cluster.")] = 0,
    gpus: Annotated[int, typer.Option(help="Of a replica on a cluster.")] = 0,
    max_adapters: Annotated[
        int, typer.Option(help="Most LoRA adapters in a replica's memory at a time; 0: none are served.")
    ] = 0,
    context_length: Annotated[
        int, typer.Option(help="Most tokens of one request; 0: what the memory holds.")
    ] = 0,
    max_concurrency: Annotated[int, typer.Option(help="Most requests at a time; 0: by flavour.")] = 0,
    task: Annotated[
        Task, typer.Option(help="Texts, or vectors of texts: an engine does one.")
    ] = Task.GENERATE,
    by_hour: Annotated[
        bool, typer.Option("--by-hour", help="Charge hours of replicas instead of tokens.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Until the first replica answers.")] = True,
    project: ProjectOption = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """Serve a model: give it a name that OpenAI clients call.

    It starts replicas of vLLM, as many as asked for, and waits until the first answers.
    Adapters on the model that are READY are served too where --max-adapters is given, also those that come
    later.

    Examples:

      neo deploy bank
      neo deploy bank --max-adapters 4
      neo deploy bank --fast --replicas 1..4 --platform gpu-h100-sxm --preset 1gpu-16vcpu-200gb
      neo deploy bank --replicas 0..1
      neo deploy bge-small --task embed
      neo deploy bank --on-slurm research --gpus 1
    """
    place = open_place(context, project)
    found = find(place, MODELS, model)
    least, most = bounds(replicas, "--replicas")
    spec: dict[str, Any] = {
        "model_id": found.metadata.id,
        "flavour": "FAST" if fast else "BASE",
        "task": task.value.upper(),
        "charge": "BY_HOUR" if by_hour else "BY_TOKEN",
        "scaling": {"min_replicas": least, "max_replicas": most},
        "max_adapters": max_adapters,
        "context_length": context_length,
        "max_concurrency": max_concurrency,
    }
    if on_slurm:
        spec["slurm_cluster_id"] = find(place, CLUSTERS, on_slurm).metadata.id
        spec["slurm_resources"] = {"cpus": cpus, "memory_gibibytes": memory, "gpus": gpus}
    shapes = [("", "")] if on_slurm else possible_shapes(place, found, platform, preset)
    chosen = name or _name_of(found.metadata.name, is_fast=fast)
    operation = _create(place, chosen, spec, shapes)
    deployment = _follow(place, chosen, operation, wait=wait)
    _tell(place, deployment, output)


def _create(place: Place, name: str, spec: dict[str, Any], shapes: Sequence[tuple[str, str]]) -> Any:
    """By the first shape that this machine has; refusals of the others are not told."""
    for number, (platform, preset) in enumerate(shapes, start=1):
        whole = {**spec, "platform": platform, "preset": preset}
        request = {"metadata": {"parent_id": place.project, "name": name}, "spec": whole}
        try:
            return place.client.call(f"{DEPLOYMENTS}/Create", request)
        except ClientError as error:
            if number == len(shapes) or error.code not in _NOT_HERE:
                raise
    raise AssertionError("There is at least one shape.")


def _follow(place: Place, name: str, operation: Any, *, wait: bool) -> Any:
    if wait:
        try:
            with stage(f"Deployment {name}: until its first replica answers"):
                place.client.wait(operation, timeout_seconds=START_TIMEOUT_SECONDS)
        except ClientError as error:
            hint = (
                f"See what the engine wrote: neo deployment logs {name}. End it: neo deployment delete {name}"
            )
            raise ClientError(error.code, str(error).rstrip("."), hint) from error
        except KeyboardInterrupt:
            say(f"It goes on without you. `neo deployment show {name}` shows how far it is.")
            raise
    return place.client.call(f"{DEPLOYMENTS}/Get", {"id": operation.resource_id})


def _tell(place: Place, deployment: Any, output: Format) -> None:
    if output is not Format.TABLE:
        show(output, contract.to_dict(deployment), fields_table(()))
        return
    name = deployment.metadata.name
    status = deployment.status
    echo(f"Deployment {name} is {DEPLOYMENT_STATE.Name(status.state)}.")
    if status.memory:
        echo(f"Memory: {status.memory}.")
    echo(how_to_call(place, deployment))


def how_to_call(place: Place, deployment: Any) -> str:
    """The address for OpenAI clients, and a line to try."""
    names = deployment.status.served_names
    called = names[0] if names else deployment.metadata.name
    try:
        base_url = f"{gateway_address(place.profile)}/v1"
    except ClientError as error:
        return f"The gateway is not known here: {error}"
    path, asked = "chat/completions", '"messages": [{"role": "user", "content": "Hello"}]'
    if TASK.Name(deployment.spec.task) == "EMBED":
        path, asked = "embeddings", '"input": "Hello"'
    return "\n".join(
        (
            f"OpenAI clients: base_url={base_url} model={called}",
            f"  curl {base_url}/{path} -H 'Content-Type: application/json' \\",
            '    -H "Authorization: Bearer $(neo session token)" \\',
            f"""    -d '{{"model": "{called}", {asked}}}'""",
        )
    )


def bounds(text: str, where: str) -> tuple[int, int]:
    """The fewest and the most replicas of "2" or "0..4"; `where` names the parameter to whoever mistyped."""
    match = _RANGE.fullmatch(text)
    if match is None:
        raise typer.BadParameter(
            f'"{text}" is no number and no MIN..MAX; write 1, 1..4 or 0..1', param_hint=where
        )
    least = int(match["least"])
    return least, int(match["most"]) if match["most"] else max(1, least)


def _name_of(model: str, *, is_fast: bool) -> str:
    """A deployment's name is a label: lower-case letters, digits and hyphens."""
    label = re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-")[:57].strip("-")
    return f"{label}-fast" if is_fast else label
