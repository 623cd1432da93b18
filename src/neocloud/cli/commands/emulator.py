"""`neo emulator fault`: make an emulated cloud fail on demand."""

from typing import TYPE_CHECKING, Annotated

import typer

from neocloud.cli.lazy import command_group
from neocloud.cli.output import Format, OutputOption, View, show, table
from neocloud.cli.resources.lookup import (
    CLUSTERS,
    INSTANCES,
    Connected,
    ProjectClient,
    connect_to_project,
    find_in,
    is_id_of,
    not_found,
)
from neocloud.cli.terminal import echo
from neocloud.client.errors import ClientError
from neocloud.client.faults import CLEAR, LIST, FaultKind
from neocloud.client.faults import inject as inject_fault
from neocloud.core import contract
from neocloud.core.contract.registry import ROUTING_CODE

if TYPE_CHECKING:
    from neocloud.messages.neocloud.emulator.v1 import Fault, FaultSpec

app = command_group(
    "Make an emulated cloud fail on demand.\n\n`neo up --emulator` starts one; it runs nothing real."
    "\n\nExample:\n\n  neo emulator fault list"
)
fault = command_group(
    "Faults on demand.\n\nExample:\n\n  neo emulator fault inject no-capacity --calls InstanceService/Create"
)
app.add_typer(fault, name="fault")


@fault.command()
def inject(
    context: typer.Context,
    kind: Annotated[FaultKind, typer.Argument(help="Kind of fault.")],
    calls: Annotated[
        str,
        typer.Option(
            help="Calls to fail: Service/Method, with * as a wildcard. Required without --resource."
        ),
    ] = "",
    count: Annotated[int, typer.Option(min=1, help="Number of calls to fail.")] = 1,
    unlimited: Annotated[
        bool, typer.Option("--unlimited", help="Fail all calls until the fault is cleared.")
    ] = False,
    resource: Annotated[
        str,
        typer.Option(
            help="Name or id of the machine or Slurm cluster for pod-crash, preemption or maintenance."
        ),
    ] = "",
    pod: Annotated[str, typer.Option(help="Pod for pod-crash. Default: all pods of the resource.")] = "",
    delay: Annotated[
        float | None,
        typer.Option(
            min=0, help="Delay in seconds for slow-call, slow-operation (default 5) and maintenance (0)."
        ),
    ] = None,
    answer_lost: Annotated[
        bool, typer.Option("--answer-lost", help="Execute the call and lose only its answer.")
    ] = False,
    output: OutputOption = Format.TABLE,
) -> None:
    """Inject a fault into the next calls or into a resource.

    Examples:

      neo emulator fault inject quota-exceeded --calls DiskService/Create --count 2
      neo emulator fault inject slow-operation --calls 'InstanceService/*' --delay 30
      neo emulator fault inject unavailable --calls '*/Create' --answer-lost
      neo emulator fault inject preemption --resource web
    """
    cloud = connect_to_project(context, "")
    with cloud.client as client:
        injected = inject_fault(
            client,
            kind,
            calls=calls,
            count=count,
            unlimited=unlimited,
            resource_id=_resource_id(cloud, resource),
            pod=pod,
            delay_seconds=delay,
            answer_lost=answer_lost,
        )
    show(output, contract.to_document(injected), _table([injected]))


def _resource_id(cloud: ProjectClient, named: str) -> str:
    if not named or is_id_of(INSTANCES, named) or is_id_of(CLUSTERS, named):
        return named
    found, refusals = find_in(cloud, (INSTANCES, CLUSTERS), named)
    if len(found) == 1:
        return next(iter(found.values()))
    if found:
        raise ClientError(
            "FAILED_PRECONDITION", f"Both a machine and a Slurm cluster are named {named!r}", "Give the id"
        )
    if contract.is_id(named) and named.partition("-")[2].startswith(ROUTING_CODE):
        return named  # an id of another kind
    message = f"There is no machine and no Slurm cluster {named!r}"
    raise not_found(cloud, (INSTANCES, CLUSTERS), named, message, refusals)


@fault.command(name="list")
def list_faults(client: Connected, output: OutputOption = Format.TABLE) -> None:
    """List the injected faults, oldest first, including those that are used up.

    Example:

      neo emulator fault list
    """
    faults = list(client.call(LIST).items)
    show(
        output,
        [contract.to_document(found) for found in faults],
        _table(faults),
        empty="No faults. Inject one: neo emulator fault inject --help",
    )


@fault.command()
def clear(
    client: Connected, fault_id: Annotated[str, typer.Argument(help="Id of the fault. Default: all.")] = ""
) -> None:
    """Clear one fault or all; operations that were held up continue.

    Example:

      neo emulator fault clear
    """
    cleared = client.call(CLEAR, {"id": fault_id}).cleared
    echo(f"Cleared {cleared}.")


def _table(faults: list["Fault"]) -> View:
    rows = [
        (
            found.id,
            _kind(found.spec),
            found.spec.calls or found.spec.resource_id,
            _left(found),
            found.calls_met or "",
            found.effect,
        )
        for found in faults
    ]
    return table(["ID", "KIND", "OF", "LEFT", "MET", "EFFECT"], rows, right=["LEFT", "MET"])


def _kind(spec: "FaultSpec") -> str:
    name = spec.WhichOneof("fault")
    if name == "refusal":
        name = spec.refusal.DESCRIPTOR.enum_types_by_name["Code"].values_by_number[spec.refusal.code].name
    return name.lower().replace("_", "-")


def _left(found: "Fault") -> str:
    if found.spec.resource_id:
        return ""
    return "no end" if found.spec.unlimited else str(found.calls_left)
