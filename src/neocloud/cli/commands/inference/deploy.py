"""`neo deploy`: serve a model and print how to call it."""

import re
from enum import StrEnum
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from neocloud.cli.commands.inference.price import PriceOption, parsed_price, warn_if_cut_off
from neocloud.cli.lazy import Options, command_group
from neocloud.cli.output import DryRunOption, Format, JsonObject, OutputOption, fields_table, say, show
from neocloud.cli.progress import finish
from neocloud.cli.resources.lookup import CLUSTERS, DEPLOYMENTS, MODELS, Cloud, ProjectClient, state_of
from neocloud.cli.resources.prices import show_trial
from neocloud.cli.resources.shapes import possible_shapes, with_first
from neocloud.cli.terminal import echo
from neocloud.client.errors import ClientError
from neocloud.client.gateway import gateway_address
from neocloud.core import contract
from neocloud.messages.neocloud.inference.v1 import DeploymentSpec, ModelStatus

if TYPE_CHECKING:
    from neocloud.messages.nebius.common.v1 import Operation
    from neocloud.messages.neocloud.inference.v1 import Deployment

CREATE = f"{DEPLOYMENTS}/Create"
TASK = DeploymentSpec.Task
START_TIMEOUT_SECONDS = 3600.0
_NOT_HERE = frozenset({"RESOURCE_EXHAUSTED", "INVALID_ARGUMENT"})
"""Codes that mean that this machine lacks the GPU, or the memory for the model."""
_RANGE = re.compile(r"(?P<least>\d{1,2})(\.\.(?P<most>\d{1,2}))?")

_FIRST_CALLS = {
    "GENERATE": (
        "chat/completions",
        '"max_tokens": 200, "messages": [{"role": "user", "content": "Hello"}]',
    ),
    "EMBED": ("embeddings", '"input": "Hello"'),
    "RERANK": ("rerank", '"query": "Hello", "documents": ["Good morning", "An invoice"]'),
}
"""Path and body of a call to try, by task."""

app = command_group()


class Task(StrEnum):
    GENERATE = "generate"
    EMBED = "embed"
    RERANK = "rerank"


ModelArgument = Annotated[str, typer.Argument(help="Name or id of the model.")]
NameOption = Annotated[
    str, typer.Option(help="Name of the deployment. Default: derived from the model's name.")
]
FastOption = Annotated[
    bool,
    typer.Option("--fast", help='Use the flavour for few concurrent requests; its names end in "-fast".'),
]
ReplicasOption = Annotated[
    str, typer.Option(metavar="MIN..MAX", help="Number of replicas; 0..N sleeps without requests.")
]
PlatformOption = Annotated[
    str, typer.Option(help="Platform of a replica. Default: one that this machine has.")
]
PresetOption = Annotated[
    str, typer.Option(help="CPUs, memory and GPUs of a replica. Default: the smallest that fits.")
]
OnSlurmOption = Annotated[
    str, typer.Option(metavar="CLUSTER", help="Run replicas as jobs of this Slurm cluster.")
]
CpusOption = Annotated[int, typer.Option(help="CPUs of a replica on a cluster.")]
MemoryOption = Annotated[int, typer.Option(metavar="GIB", help="Memory of a replica on a cluster.")]
GpusOption = Annotated[int, typer.Option(help="GPUs of a replica on a cluster.")]
MaxAdaptersOption = Annotated[
    int, typer.Option(help="Maximum LoRA adapters in a replica's memory at a time; 0: serve none.")
]
ContextLengthOption = Annotated[
    int, typer.Option(help="Maximum tokens of a request; 0: as many as fit in memory.")
]
MaxConcurrencyOption = Annotated[
    int, typer.Option(help="Maximum concurrent requests; 0: set by the flavour.")
]
TaskOption = Annotated[
    Task | None,
    typer.Option(
        help="Generate text, embed text as vectors, or rank documents. Default: what the model is made for.",
        show_default=False,
    ),
]
ByHourOption = Annotated[bool, typer.Option("--by-hour", help="Charge replica hours instead of tokens.")]
WaitOption = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the first replica answers.")]


def _slurm_resources(cpus: CpusOption = 0, memory: MemoryOption = 0, gpus: GpusOption = 0) -> JsonObject:
    return {"cpus": cpus, "memory_gibibytes": memory, "gpus": gpus}


def service(
    max_adapters: MaxAdaptersOption = 0,
    context_length: ContextLengthOption = 0,
    max_concurrency: MaxConcurrencyOption = 0,
    task: TaskOption = None,
    by_hour: ByHourOption = False,
    price: PriceOption = "",
) -> JsonObject:
    """Return fields of the spec."""
    return {
        "max_adapters": max_adapters,
        "context_length": context_length,
        "max_concurrency": max_concurrency,
        **({"task": task.value.upper()} if task else {}),
        "charge": "BY_HOUR" if by_hour else "BY_TOKEN",
        **({"price": parsed_price(price, "--price")} if price else {}),
    }


NOTHING: JsonObject = {}


@app.command()
def deploy(
    cloud: Cloud,
    model: ModelArgument,
    name: NameOption = "",
    fast: FastOption = False,
    replicas: ReplicasOption = "1..1",
    platform: PlatformOption = "",
    preset: PresetOption = "",
    on_slurm: OnSlurmOption = "",
    resources: Annotated[JsonObject, Options(_slurm_resources)] = NOTHING,
    offered: Annotated[JsonObject, Options(service)] = NOTHING,
    wait: WaitOption = True,
    dry_run: DryRunOption = False,
    output: OutputOption = Format.TABLE,
) -> None:
    """Serve a model under a name that OpenAI clients call.

    Starts replicas of vLLM and waits until the first one answers. With --max-adapters, READY adapters on the
    model are served too, including those added later.

    Examples:

      neo deploy assistant
      neo deploy assistant --by-hour --dry-run
      neo deploy assistant --max-adapters 4
      neo deploy assistant --fast --replicas 1..4 --platform gpu-h100-sxm --preset 1gpu-16vcpu-200gb
      neo deploy assistant --replicas 0..1
      neo deploy all-minilm-l6-v2 --price 0.01
      neo deploy assistant --on-slurm research --gpus 1
      neo deploy assistant --price 0.10/0.40
    """
    found = cloud.find(MODELS, model)
    least, most = bounds(replicas, "--replicas")
    spec: JsonObject = {
        "model_id": found.metadata.id,
        "flavour": "FAST" if fast else "BASE",
        "scaling": {"min_replicas": least, "max_replicas": most},
        "task": _task_of(found),
        **offered,
    }
    if spec["task"] != "GENERATE" and "price" in spec:
        spec["price"] = {**spec["price"], "output": "0"}  # nothing is generated
    if on_slurm:
        spec["slurm_cluster_id"] = cloud.find(CLUSTERS, on_slurm).metadata.id
        spec["slurm_resources"] = resources
    metadata = {"parent_id": cloud.project, "name": name or _name_of(found.metadata.name, is_fast=fast)}

    def create(shape: JsonObject) -> "Operation | None":
        request = {"metadata": metadata, "spec": {**spec, **shape}}
        return (
            show_trial(cloud.client, CREATE, request, output)
            if dry_run
            else cloud.client.call(CREATE, request)
        )

    shapes = [("", "")] if on_slurm else possible_shapes(cloud, found, platform, preset)
    operation, _ = with_first(shapes, create, _NOT_HERE)
    if operation is None:
        return
    deployment = _follow(cloud, metadata["name"], operation, wait=wait)
    _print_result(cloud, deployment, output)
    if "price" not in spec and spec["charge"] == "BY_TOKEN":
        warn_if_cut_off(cloud, f"{found.metadata.name}-fast" if fast else found.metadata.name)


def _task_of(model: Any) -> str:
    """Return what the model is made for; of one that an earlier release inspected, the cloud says if it is
    something else than to generate text."""
    found = ModelStatus.Task.Name(model.status.task)
    return "GENERATE" if found == "TASK_UNSPECIFIED" else found


def _follow(cloud: ProjectClient, name: str, operation: "Operation", *, wait: bool) -> Any:
    if wait:
        try:
            title = f"Deployment {name}: wait for the first replica"
            finish(cloud.client, operation, title, START_TIMEOUT_SECONDS)
        except ClientError as error:
            known_as = quote(name)
            hint = f"See the log: neo deployment logs {known_as}. Delete it: neo deployment delete {known_as}"
            raise ClientError(error.code, str(error).rstrip("."), hint) from error
        except KeyboardInterrupt:
            say(f"The operation continues in the cloud. `neo deployment get {quote(name)}` shows its state.")
            raise
    return cloud.client.call(f"{DEPLOYMENTS}/Get", {"id": operation.resource_id})


def _print_result(cloud: ProjectClient, deployment: "Deployment", output: Format) -> None:
    if output is not Format.TABLE:
        show(output, contract.to_document(deployment), fields_table(()))
        return
    name = deployment.metadata.name
    status = deployment.status
    echo(f"Deployment {name} is {state_of(deployment)}.")
    if status.memory:
        echo(f"Memory: {status.memory}.")
    echo(how_to_call(cloud, deployment))


def how_to_call(cloud: ProjectClient, deployment: "Deployment") -> str:
    """Return the address for OpenAI clients and a command to try."""
    names = deployment.status.served_names
    model = names[0] if names else deployment.metadata.name
    try:
        base_url = f"{gateway_address(cloud.profile)}/v1"
    except ClientError as error:
        return f"No gateway is known for this profile: {error}"
    path, prompt = _FIRST_CALLS[TASK.Name(deployment.spec.task)]
    return "\n".join(
        (
            f"OpenAI clients: base_url={base_url} model={model}",
            f"  curl {base_url}/{path} -H 'Content-Type: application/json' \\",
            '    -H "Authorization: Bearer $(neo session token)" \\',
            f"""    -d '{{"model": "{model}", {prompt}}}'""",
        )
    )


def bounds(text: str, where: str) -> tuple[int, int]:
    """Return the minimum and maximum of "2" or "0..4"; `where` names the parameter in errors."""
    match = _RANGE.fullmatch(text)
    if match is None:
        raise typer.BadParameter(
            f'"{text}" is neither a number nor MIN..MAX; write 1, 1..4 or 0..1', param_hint=where
        )
    least = int(match["least"])
    return least, int(match["most"]) if match["most"] else max(1, least)


def _name_of(model: str, *, is_fast: bool) -> str:
    """Return a name of lower-case letters, digits and hyphens, derived from the model's."""
    label = re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-")[:57].strip("-")
    return f"{label}-fast" if is_fast else label
