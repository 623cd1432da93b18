"""`neo deploy`: serve a model and print how to call it."""

import re
from enum import StrEnum
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from neocloud.cli.commands.inference.price import PriceOption, parsed_price, warn_if_cut_off
from neocloud.cli.lazy import Options, command_group
from neocloud.cli.output import (
    DryRunOption,
    Format,
    JsonObject,
    OutputOption,
    fields_table,
    say,
    show,
    size_text,
)
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
WEIGHTS = DeploymentSpec.Weights
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


class Weights(StrEnum):
    ORIGINAL = "original"
    INT8 = "int8"
    INT4 = "int4"


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
WorkerOption = Annotated[
    str, typer.Option(metavar="NAME", help="Worker of the cluster that replicas run on, e.g. worker-4.")
]
WeightsInMemoryOption = Annotated[
    bool,
    typer.Option(
        "--weights-in-memory",
        help="Read the weights from a submount in memory of the cluster's workers, where they are kept.",
    ),
]
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
WeightsOption = Annotated[
    Weights, typer.Option(help="Bits of the weights; fewer are made once, and their quality is compared.")
]
AcceptLowerQualityOption = Annotated[
    bool,
    typer.Option(
        "--accept-lower-quality",
        help="Serve weights of fewer bits also below 99 % of the original's quality, or uncompared.",
    ),
]
ByHourOption = Annotated[bool, typer.Option("--by-hour", help="Charge replica hours instead of tokens.")]
WaitOption = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the first replica answers.")]


def _slurm_resources(
    cpus: CpusOption = 0, memory: MemoryOption = 0, gpus: GpusOption = 0, worker: WorkerOption = ""
) -> JsonObject:
    return {"cpus": cpus, "memory_gibibytes": memory, "gpus": gpus, "worker": worker}


def service(
    max_adapters: MaxAdaptersOption = 0,
    context_length: ContextLengthOption = 0,
    max_concurrency: MaxConcurrencyOption = 0,
    task: TaskOption = None,
    weights: WeightsOption = Weights.ORIGINAL,
    accept_lower_quality: AcceptLowerQualityOption = False,
    weights_in_memory: WeightsInMemoryOption = False,
    by_hour: ByHourOption = False,
    price: PriceOption = "",
) -> JsonObject:
    """Return fields of the spec."""
    return {
        "max_adapters": max_adapters,
        "context_length": context_length,
        "max_concurrency": max_concurrency,
        **({"task": task.value.upper()} if task else {}),
        "weights": weights.value.upper(),
        "accept_lower_quality": accept_lower_quality,
        "weights_in_memory": weights_in_memory,
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
      neo deploy assistant --weights int8
      neo deploy all-minilm-l6-v2 --price 0.01
      neo deploy assistant --on-slurm research --gpus 1
      neo deploy assistant --on-slurm research --worker worker-4 --weights-in-memory
      neo deploy assistant --price 0.10/0.40
    """
    found = cloud.find(MODELS, model)
    least, most = bounds(replicas, "--replicas")
    spec: JsonObject = {
        "model_id": found.metadata.id,
        "flavour": "FAST" if fast else "BASE",
        "scaling": {"min_replicas": least, "max_replicas": most},
        **_with_task(found, offered),
    }
    spec |= _place(cloud, on_slurm, resources)
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


def _place(cloud: ProjectClient, cluster: str, resources: JsonObject) -> JsonObject:
    """Return the fields of the spec that name the cluster; none without one."""
    if cluster:
        cluster_id = cloud.find(CLUSTERS, cluster).metadata.id
        return {"slurm_cluster_id": cluster_id, "slurm_resources": resources}
    if given := [name for name, value in resources.items() if value]:
        option = given[0].removesuffix("_gibibytes")
        hint = "is for replicas on a cluster; name it with --on-slurm, or choose a --preset"
        raise typer.BadParameter(hint, param_hint=f"--{option}")
    return {}


def _with_task(model: Any, offered: JsonObject) -> JsonObject:
    """Return the fields with the task that the model is made for, if they have none.

    Of a model that an earlier release inspected, the cloud says if it cannot generate text.
    """
    made_for = ModelStatus.Task.Name(model.status.task)
    spec: JsonObject = {"task": "GENERATE" if made_for == "TASK_UNSPECIFIED" else made_for, **offered}
    if spec["task"] != "GENERATE" and "price" in spec:
        spec["price"] = {**spec["price"], "output": "0"}  # nothing is generated
    return spec


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
    if status.HasField("weights_quality"):
        echo(f"Weights: {weights_text(deployment)}.")
    echo(how_to_call(cloud, deployment))


def weights_text(deployment: "Deployment") -> str:
    """Return the bits of the weights, and how their quality compares with the original's; "" of original
    ones."""
    name = WEIGHTS.Name(deployment.spec.weights).lower()
    quality = deployment.status.weights_quality
    if name == Weights.ORIGINAL:
        return ""
    if not deployment.status.HasField("weights_quality"):
        return name
    sizes = f"{size_text(quality.size_bytes)} instead of {size_text(quality.original_bytes)}"
    if not quality.is_compared:
        return f"{name}, {sizes}, quality not_run: {quality.text}"
    return f"{name}, {sizes}, {quality.percent:.1f} % of the original's quality ({quality.text})"


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
