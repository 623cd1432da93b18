"""`neo deployment`: list, show, logs, scale, wake, delete."""

from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from neocloud.cli.commands.inference.deploy import bounds, how_to_call, weights_text
from neocloud.cli.commands.inference.price import parsed_price
from neocloud.cli.lazy import command_group
from neocloud.cli.output import Format, JsonObject, OutputOption, counted, fields_table, say, show
from neocloud.cli.progress import duration, finish
from neocloud.cli.resources.log_parts import log_parts
from neocloud.cli.resources.lookup import DEPLOYMENTS, MODELS, Cloud, ProjectClient, names_of, state_of
from neocloud.cli.resources.viewed import ListView, delete_in_project, list_in_project
from neocloud.cli.terminal import echo
from neocloud.core import contract
from neocloud.messages.neocloud.inference.v1 import DeploymentSpec, Replica

if TYPE_CHECKING:
    from neocloud.messages.nebius.common.v1 import Operation
    from neocloud.messages.neocloud.inference.v1 import Deployment

REPLICA_STATE = Replica.State
FLAVOUR = DeploymentSpec.Flavour
IDLE_SECONDS = 900
"""The default of an unset `idle_seconds`."""
DELETE_TIMEOUT_SECONDS = 300.0

app = command_group(
    """Models being served: their state, logs and size.

Examples:

  neo deployment list
  neo deployment scale assistant 0..2
  neo deployment logs assistant
  neo deployment delete assistant
"""
)

NameArgument = Annotated[
    str, typer.Argument(help="Name or id of the deployment.", autocompletion=names_of(DEPLOYMENTS))
]


def _list_view(cloud: ProjectClient, deployments: object) -> ListView:
    models = {model.metadata.id: model.metadata.name for model in cloud.list_all(MODELS)}
    return ListView(
        {
            "NAME": lambda item: item.metadata.name,
            "STATE": state_of,
            "MODEL": lambda item: models.get(item.spec.model_id, item.spec.model_id),
            "FLAVOUR": lambda item: FLAVOUR.Name(item.spec.flavour).lower(),
            "READY": lambda item: f"{_ready(item)}/{item.status.wanted_replicas}",
            "PRESET": lambda item: item.spec.preset or "slurm",
            "CALLED": lambda item: ", ".join(item.status.served_names),
        },
        empty="No model is served. Serve one with: neo deploy MODEL",
    )


list_in_project(app, DEPLOYMENTS, _list_view, "List the deployments.\n\nExample:\n\n  neo deployment list")


@app.command("get")
def show_deployment(cloud: Cloud, name: NameArgument, output: OutputOption = Format.TABLE) -> None:
    """Show one deployment: its replicas, memory and address.

    Example:

      neo deployment get assistant
    """
    item = cloud.find(DEPLOYMENTS, name)
    status = item.status
    pairs = [
        ("Name", item.metadata.name),
        ("ID", item.metadata.id),
        ("State", state_of(item)),
        ("Message", status.message),
        ("Memory", status.memory),
        ("Weights", weights_text(item)),
        ("Context", f"{status.context_length:,}"),
        ("At a time", status.max_concurrency),
        ("Called", ", ".join(status.served_names)),
        ("Scales", _scaling(item)),
        ("Cold start", f"{status.start_seconds} s" if status.start_seconds else ""),
        *((f"Replica {each.name.rpartition('-')[2]}", _replica(each)) for each in status.replicas),
    ]
    show(output, contract.to_document(item), fields_table(pairs))
    if output is Format.TABLE:
        echo(how_to_call(cloud, item))


@app.command()
def logs(
    cloud: Cloud,
    name: NameArgument,
    replica: Annotated[
        str, typer.Option(help="Name of the replica, e.g. replica-1. Default: the first.")
    ] = "",
    lines: Annotated[int, typer.Option(min=1, max=10000, help="Number of last lines to print.")] = 200,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing new lines.")] = False,
) -> None:
    """Print the last lines of a replica's model server.

    Examples:

      neo deployment logs assistant --lines 50
      neo deployment logs assistant --follow
    """
    item = cloud.find(DEPLOYMENTS, name)
    request: JsonObject = {"id": item.metadata.id, "replica": replica, "lines": lines}
    run, has_text = "", False
    for part in log_parts(cloud.client, f"{DEPLOYMENTS}/ReadLog", request, follow=follow):
        if run and part.run not in ("", run):
            say("The replica was started again; this is the log of its new run.")
        run = part.run or run
        if part.text:
            echo(part.text, nl=not part.text.endswith("\n"))
        elif not has_text and not follow:
            _say_why_empty(item, replica)
        has_text |= bool(part.text)


def _say_why_empty(item: "Deployment", replica: str) -> None:
    messages = {each.name: each.message for each in item.status.replicas}
    why = messages.get(replica, "") if replica else next(iter(messages.values()), "")
    why = why or item.status.message
    say(f"The log is empty: {why}" if why else "The log is still empty.")


@app.command()
def scale(
    cloud: Cloud,
    name: NameArgument,
    replicas: Annotated[
        str, typer.Argument(metavar="MIN..MAX", help="Number of replicas; 0..N sleeps without requests.")
    ],
    idle: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="SECONDS",
            help="Time without requests after which replicas beyond MIN stop; 0: 15 minutes. At least"
            " one and a half cold starts. Default: unchanged.",
        ),
    ] = None,
) -> None:
    """Change the number of replicas.

    Examples:

      neo deployment scale assistant 2
      neo deployment scale assistant 0..4 --idle 600
    """
    item = cloud.find(DEPLOYMENTS, name)
    least, most = bounds(replicas, "MIN..MAX")
    scaling = {"min_replicas": least, "max_replicas": most}
    scaling |= {} if idle is None else {"idle_seconds": idle}
    request = {"metadata": {"id": item.metadata.id}, "spec": {"scaling": scaling}}
    mask = [f"spec.scaling.{field}" for field in scaling]
    cloud.client.call(f"{DEPLOYMENTS}/Update", request, reset_mask=mask)
    span = counted(least, "replica") if least == most else f"{least} to {most} replicas"
    known_as = item.metadata.name
    say(f"Deployment {known_as} now scales to {span}. `neo deployment get {quote(known_as)}` shows them.")


@app.command()
def price(
    cloud: Cloud,
    name: NameArgument,
    amount: Annotated[
        str,
        typer.Argument(
            metavar="INPUT/OUTPUT", help="US dollars per million tokens, e.g. 0.10/0.40; 0 if it is free."
        ),
    ],
) -> None:
    """Set the price of a deployment's tokens, which a project with a budget needs.

    Examples:

      neo deployment price assistant 0.10/0.40
      neo deployment price assistant 0
    """
    item = cloud.find(DEPLOYMENTS, name)
    spec = {"price": parsed_price(amount, "INPUT/OUTPUT")}
    request = {"metadata": {"id": item.metadata.id}, "spec": spec}
    mask = [f"spec.price.{field}" for field in ("input", "cached_input", "output")]
    cloud.client.call(f"{DEPLOYMENTS}/Update", request, reset_mask=mask)
    found = spec["price"]
    say(
        f"Deployment {item.metadata.name} costs ${found['input']} per million tokens of input"
        f" and ${found['output']} per million of output."
    )


@app.command()
def wake(cloud: Cloud, name: NameArgument) -> None:
    """Wake a sleeping deployment, as a request to it would.

    Example:

      neo deployment wake assistant
    """
    item = cloud.find(DEPLOYMENTS, name)
    cloud.client.call(f"{DEPLOYMENTS}/Wake", {"id": item.metadata.id})
    known_as = item.metadata.name
    say(f"Deployment {known_as} is waking. `neo deployment get {quote(known_as)}` shows its state.")


def _wait_until_deleted(cloud: ProjectClient, operation: "Operation", what: str) -> None:
    finish(cloud.client, operation, f"Delete {what}", DELETE_TIMEOUT_SECONDS)
    say(f"{what.capitalize()[:1]}{what[1:]} is deleted.")


delete_in_project(
    app,
    DEPLOYMENTS,
    "deployment",
    _wait_until_deleted,
    "Delete a deployment; the model is kept.\n\nExample:\n\n  neo deployment delete assistant --yes",
    is_new=True,
)


def _scaling(item: "Deployment") -> str:
    """Return the replicas that it scales between, and when it goes down again."""
    scaling = item.spec.scaling
    if scaling.min_replicas == scaling.max_replicas:
        return counted(scaling.min_replicas, "replica")
    idle = duration(scaling.idle_seconds or IDLE_SECONDS)
    return f"{scaling.min_replicas} to {scaling.max_replicas} replicas, down after {idle} without requests"


def _ready(item: "Deployment") -> int:
    return sum(REPLICA_STATE.Name(each.state) == "READY" for each in item.status.replicas)


def _replica(replica: "Replica") -> str:
    parts = [REPLICA_STATE.Name(replica.state), replica.address]
    parts += [f"job {replica.job_id}"] if replica.job_id else []
    parts += [f"{replica.restarts} restarts"] if replica.restarts else []
    parts += [f"adapters {', '.join(replica.adapters)}"] if replica.adapters else []
    return "  ".join(part for part in (*parts, replica.message) if part)
