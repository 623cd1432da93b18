"""`neo model`: add, list, show, push, lineage, rebuild, verify, delete."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from neocloud.cli.commands.inference.catalogue import CATALOGUE, OfferedModel, catalogue_folder
from neocloud.cli.commands.inference.copy import copy_in
from neocloud.cli.commands.inference.lineage import lineage, models_trained_on
from neocloud.cli.commands.inference.model_text import details, parameters, summary, task_text
from neocloud.cli.commands.inference.price import callable_name, optional_list
from neocloud.cli.commands.inference.push import push
from neocloud.cli.commands.inference.rebuild import rebuild
from neocloud.cli.commands.inference.verify import questions_of, verify
from neocloud.cli.lazy import command_group
from neocloud.cli.output import Format, JsonObject, OutputOption, fields_table, say, show, size_text, warn
from neocloud.cli.progress import finish, stage
from neocloud.cli.registry.names import check_hub_id, find_artifact, is_artifact
from neocloud.cli.resources.lookup import (
    DEPLOYMENTS,
    MODELS,
    Cloud,
    ProjectClient,
    ProjectOption,
    connect_to_project,
    names_of,
    state_of,
)
from neocloud.cli.resources.viewed import ListView, delete_in_project
from neocloud.cli.storage.places import SCHEME
from neocloud.cli.terminal import echo
from neocloud.client.errors import ClientError
from neocloud.core import contract

if TYPE_CHECKING:
    from neocloud.messages.nebius.common.v1 import Operation
    from neocloud.messages.neocloud.inference.v1 import Deployment, Model

READ_TIMEOUT_SECONDS = 1800.0
SERVED_SECONDS = 60.0
POLL_SECONDS = 0.5

app = command_group(
    """Models and adapters that can be served.

Examples:

  neo model add smollm2
  neo model add all-minilm-l6-v2
  neo model add assistant ./assistant-model
  neo model add support ./support-adapter --base assistant
  neo model add qwen Qwen/Qwen3-0.6B
  neo model push support team/support:v1
  neo model lineage support
  neo deploy assistant
"""
)

NameArgument = Annotated[
    str, typer.Argument(help="Name or id of the model.", autocompletion=names_of(MODELS))
]


AddNameArgument = Annotated[str, typer.Argument(help="Name that clients will call it by.")]
SourceArgument = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE",
        help="A folder on this machine, s3://BUCKET/FOLDER, REGISTRY/REPO:TAG, an id of the hub such as"
        f" Qwen/Qwen3-0.6B, or a model that comes with Neocloud: {', '.join(CATALOGUE)}."
        " Default: the one of this name.",
        show_default=False,
    ),
]
BaseOption = Annotated[str, typer.Option(help="Base model, if this is a LoRA adapter.")]
LicenseOption = Annotated[str, typer.Option(help='License of the model, e.g. "Apache-2.0".')]
DescriptionOption = Annotated[str, typer.Option(help="Description of the model.")]
RevisionOption = Annotated[str, typer.Option(help="Commit, tag or branch of a hub id.")]
ToolCallParserOption = Annotated[
    str, typer.Option(help="vLLM's parser for this model's tool calls, e.g. hermes, llama3_json.")
]
ReasoningParserOption = Annotated[
    str, typer.Option(help="vLLM's parser for this model's reasoning, e.g. qwen3.")
]
InPlaceOption = Annotated[
    bool,
    typer.Option("--in-place", help="Do not copy a folder that the operator has allowed (--model-folder)."),
]


QuestionsOption = Annotated[
    Path | None,
    typer.Option(
        help="JSON file of questions that the model is asked once it is added:"
        ' [{"question": TEXT, "answers": [WORD, ...]}, ...].',
    ),
]


@app.command()
def add(
    cloud: Cloud,
    name: AddNameArgument,
    source: SourceArgument = "",
    base: BaseOption = "",
    license: LicenseOption = "",
    description: DescriptionOption = "",
    revision: RevisionOption = "",
    tool_call_parser: ToolCallParserOption = "",
    reasoning_parser: ReasoningParserOption = "",
    in_place: InPlaceOption = False,
    questions: QuestionsOption = None,
    output: OutputOption = Format.TABLE,
) -> None:
    """Add a model, or an adapter on one, and wait until it has been inspected, and until a deployment of its
    base that runs already serves the adapter.

    A model that comes with Neocloud is fetched and converted once. A folder, also one of a bucket, and an
    artifact of a registry are copied into the cloud, and the copy is deleted with the model. A tag is
    resolved once. A name without a tag is an id of the hub; it
    is refused where it begins with the name of a registry, unless --revision is given. A model's folder
    holds config.json, *.safetensors and tokenizer files; an adapter's holds adapter_config.json and
    adapter_model.safetensors, as peft saves them.

    Examples:

      neo model add smollm2
      neo model add all-minilm-l6-v2
      neo model add assistant ./assistant-model --license Apache-2.0
      neo model add support ./support-adapter --base assistant
      neo model add qwen Qwen/Qwen3-0.6B --tool-call-parser hermes --reasoning-parser qwen3
      neo model add big /srv/models/big --in-place
      neo model add support s3://models/support --base assistant
      neo model add support team/support:v1 --base assistant
      neo model add assistant ./assistant-model --questions questions.json
    """
    offered = _offered(name, source)
    spec: JsonObject = {
        "license": license or (offered.license if offered else ""),
        "description": description or (offered.description if offered else ""),
        "tool_call_parser": tool_call_parser,
        "reasoning_parser": reasoning_parser,
        "questions": questions_of(questions, offered),
    }
    if base:
        spec["base_model_id"] = cloud.find(MODELS, base).metadata.id
    if offered is not None:
        spec["source"] = {"folder": str(copy_in(cloud, name, catalogue_folder(cloud, offered)))}
    else:
        spec["source"] = _source_of(cloud, name, source, revision, in_place=in_place)
    model = _create(cloud, name, spec)
    text = f"Model {name} is READY: {summary(model)}."
    deployment = _wait_until_served(cloud, model) if base else ""
    next_step = f"Serve it: neo deploy {quote(base or name)}" + (" --max-adapters 4" if base else "")
    _show(model, output, f"{text}\n" + (f"Deployment {deployment} serves it." if deployment else next_step))


def _offered(name: str, source: str) -> OfferedModel | None:
    """Return the model of the catalogue that is meant; a folder here of its name comes first.

    Raises ClientError where no source is given and the name is not in the catalogue.
    """
    if source:
        return None if Path(source).is_dir() else CATALOGUE.get(source)
    if name not in CATALOGUE:
        raise ClientError(
            "INVALID_ARGUMENT",
            f"{name} does not come with Neocloud; {' and '.join(CATALOGUE)} do",
            f"Say where it is: neo model add {quote(name)} SOURCE",
        )
    return CATALOGUE[name]


def _source_of(cloud: ProjectClient, name: str, source: str, revision: str, *, in_place: bool) -> JsonObject:
    """Return the ModelSource that the argument means. Copies a folder of this machine into the cloud."""
    folder = Path(source).expanduser()
    if source.startswith(SCHEME):
        bucket, _, prefix = source.removeprefix(SCHEME).partition("/")
        return {"object": {"bucket": bucket, "prefix": prefix}}
    if folder.is_dir():
        whole = folder.resolve() if in_place else copy_in(cloud, name, folder.resolve())
        return {"folder": str(whole)}
    if source.startswith(("/", ".", "~")):
        raise ClientError("NOT_FOUND", f"{folder} is not a folder on this machine", "Check the path")
    if is_artifact(source):
        return {"artifact": {"name": str(find_artifact(cloud, source))}}
    if not revision:
        check_hub_id(cloud, source)
    return {"hub": {"id": source, "revision": revision}}


def _wait_until_served(cloud: ProjectClient, adapter: "Model") -> str:
    """Return the name of a deployment that serves the adapter beside its base; "" if none does.

    A deployment that is ready loads a new adapter within seconds. One that has no room for another adapter
    never does, so the wait ends without an error.
    """
    if not any(state_of(each) == "READY" for each in _that_take(cloud, adapter)):
        return ""
    with stage("Wait until a deployment of its base serves it"):
        deadline = time.monotonic() + SERVED_SECONDS
        while time.monotonic() < deadline:
            for each in _that_take(cloud, adapter):
                if callable_name(adapter.metadata.name, [each]):
                    return each.metadata.name
            time.sleep(POLL_SECONDS)
    return ""


def _that_take(cloud: ProjectClient, adapter: "Model") -> Sequence["Deployment"]:
    """Return the deployments of its base that take adapters; none if the caller may not list them."""
    base_id = adapter.spec.base_model_id
    deployments = optional_list(cloud, DEPLOYMENTS)
    return [each for each in deployments if each.spec.max_adapters and each.spec.model_id == base_id]


app.command()(push)
app.command()(lineage)
app.command()(rebuild)
app.command()(verify)


def _list_view(cloud: ProjectClient, models: "Sequence[Model]") -> ListView:
    names = {model.metadata.id: model.metadata.name for model in models}
    return ListView(
        {
            "NAME": lambda model: model.metadata.name,
            "STATE": state_of,
            "TASK": task_text,
            "BASE": lambda model: names.get(model.spec.base_model_id, model.spec.base_model_id),
            "PARAMETERS": lambda model: parameters(model.status.parameters),
            "SIZE": lambda model: size_text(model.status.size_bytes),
            "CONTEXT": lambda model: model.status.context_length and f"{model.status.context_length:,}" or "",
            "LICENSE": lambda model: model.spec.license,
            "DEPLOYMENTS": lambda model: len(model.status.deployment_ids) or "",
        },
        empty="No models. Add one with: neo model add",
        right=("PARAMETERS", "SIZE", "CONTEXT", "DEPLOYMENTS"),
    )


@app.command("list")
def list_models(
    cloud: Cloud,
    trained_on: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="Only models that have seen this file: its id, s3://BUCKET/KEY, SHA-256 or path.",
        ),
    ] = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """List models and adapters.

    Examples:

      neo model list
      neo model list --trained-on chats.jsonl
    """
    models = cloud.list_all(MODELS)
    if not trained_on:
        _list_view(cloud, models).show(output, models)
        return
    found = models_trained_on(cloud, trained_on)
    seen = {each.id for each in found.items}
    view = replace(_list_view(cloud, models), empty="No model has seen it.")
    view.show(output, [model for model in models if model.metadata.id in seen])
    if found.job_ids:
        say(f"Unfinished jobs use it: {', '.join(found.job_ids)}")
    if found.has_unrecorded:
        warn("There are models whose data were not recorded: they were made by an earlier release.")


@app.command("get")
def show_model(
    context: typer.Context,
    name: NameArgument,
    project: ProjectOption = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """Show one model.

    Example:

      neo model get assistant
    """
    _show(connect_to_project(context, project).find(MODELS, name), output, "")


def _wait_until_deleted(cloud: ProjectClient, operation: "Operation", what: str) -> None:
    finish(cloud.client, operation, f"Delete {what}", READ_TIMEOUT_SECONDS)
    say(f"{what[:1].upper()}{what[1:]} is deleted.")


delete_in_project(
    app,
    MODELS,
    "model",
    _wait_until_deleted,
    "Delete a model and the copy of its weights; a folder of the operator is kept."
    "\n\nExample:\n\n  neo model delete support --yes",
    also="the copy of its weights",
    is_new=True,
)


def _create(cloud: ProjectClient, name: str, spec: JsonObject) -> Any:
    request = {"metadata": {"parent_id": cloud.project, "name": name}, "spec": spec}
    operation = cloud.client.call(f"{MODELS}/Create", request)
    try:
        finish(cloud.client, operation, f"Model {name}: inspect its files", READ_TIMEOUT_SECONDS)
    except ClientError as error:
        raise ClientError(
            error.code,
            str(error).rstrip("."),
            f"`neo model delete {quote(name)}` removes it; then add it again",
        ) from error
    except KeyboardInterrupt:
        say(f"The operation continues in the cloud. `neo model get {quote(name)}` shows its state.")
        raise
    return cloud.client.call(f"{MODELS}/Get", {"id": operation.resource_id})


def _show(model: "Model", output: Format, text: str) -> None:
    if output is Format.TABLE and text:
        echo(text)
        return
    show(output, contract.to_document(model), fields_table(details(model)))


ReasonOption = Annotated[
    str, typer.Option(help="Why the model is served although it failed; the audit log keeps it.")
]


@app.command("override-gate")
def override_gate(cloud: Cloud, name: NameArgument, reason: ReasonOption) -> None:
    """Serve a model although it failed the gate of its fine-tuning job.

    It needs the right inference.gates.override, which the roles admin and inference.gates.overrider have.

    Example:

      neo model override-gate bank:ft-support-1a2b3c4d --reason "the legal wording counts more than accuracy"
    """
    model = cloud.find(MODELS, name)
    cloud.client.call(f"{MODELS}/OverrideGate", {"id": model.metadata.id, "reason": reason})
    say(f"The gate of {model.metadata.name} is overridden: it may be served.")
