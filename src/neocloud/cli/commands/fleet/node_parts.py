"""`neo fleet node inventory` and `update`: what nodes are made of, their labels and their place."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

import typer

from neocloud.cli.commands.fleet.node_lookup import NODE_HELP, SERVICE, NodeArgument, find, name_of
from neocloud.cli.output import Format, OutputOption, say, show, table
from neocloud.cli.resources.lookup import Connected
from neocloud.cli.target import profile_of
from neocloud.client.connection import connect
from neocloud.client.errors import ClientError
from neocloud.core import contract

if TYPE_CHECKING:
    from google.protobuf.timestamp_pb2 import Timestamp

    from neocloud.messages.neocloud.fleet.v1 import Node, PartHistory, PartPlace

PLACE_HELP = "Name in your plans; empty if unknown."


def inventory(
    client: Connected,
    node: Annotated[
        str, typer.Argument(metavar="[CLUSTER/NODE]", help=f"{NODE_HELP} All nodes without it.")
    ] = "",
    changes: Annotated[
        bool, typer.Option("--changes", help="Show what was added, removed and replaced.")
    ] = False,
    output: OutputOption = Format.TABLE,
) -> None:
    """List the parts of nodes with serial numbers, firmware and failures, or what changed.

    The report of a worker's pod about its GPUs is a claim. A part that several nodes claim is shown with all
    of them.

    Examples:

      neo fleet node inventory
      neo fleet node inventory bank/worker-0
      neo fleet node inventory bank/worker-0 --changes
    """
    nodes = {each.id: each for each in client.list_all(f"{SERVICE}/List")}
    wanted = find(client, node).id if node else ""
    parts = list(client.list_all(f"{SERVICE}/ListParts", {"node_id": wanted}))
    names = {each: name_of(found) for each, found in nodes.items()}
    documents = [contract.to_document(each) for each in parts]
    if changes:
        view = table(["AT, UTC", "NODE", "KIND", "SLOT", "CHANGE"], sorted(_changes(parts, names, wanted)))
        show(output, documents, view, empty="Nothing changed.")
        return
    looked_at = [nodes[wanted]] if wanted in nodes else nodes.values()
    view = table(
        ["NODE", "KIND", "SLOT", "MODEL", "SERIAL", "FIRMWARE", "SAID BY", "FAILURES", "NOTE"],
        sorted((*_rows(parts, names, wanted), *_without_serial(looked_at))),
    )
    empty = "No node has told its parts. Workers without GPUs have none that their pod sees."
    if node:
        empty = f"{node} has told no parts. A worker without GPUs has none that its pod sees."
    show(output, documents, view, empty=empty)


def update(
    context: typer.Context,
    node: NodeArgument,
    label: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Label to set; repeat it.")
    ] = None,
    remove_label: Annotated[
        list[str] | None, typer.Option(metavar="KEY", help="Label to take away; repeat it.")
    ] = None,
    rack: Annotated[str | None, typer.Option(help=PLACE_HELP)] = None,
    leaf: Annotated[str | None, typer.Option(help=PLACE_HELP)] = None,
    spine: Annotated[str | None, typer.Option(help=PLACE_HELP)] = None,
    nvlink_domain: Annotated[str | None, typer.Option(help=PLACE_HELP)] = None,
) -> None:
    """Set labels of a node, take labels away, and say where the node is.

    Examples:

      neo fleet node update bank/worker-0 --label team=vision
      neo fleet node update bank/worker-0 --remove-label team
      neo fleet node update bank/worker-0 --rack r12 --leaf leaf-3 --nvlink-domain nvl-4
    """
    place = {"rack": rack, "leaf": leaf, "spine": spine, "nvlink_domain": nvlink_domain}
    given = {name: value for name, value in place.items() if value is not None}
    labels = dict(_label(each) for each in label or ())
    if not labels and not remove_label and not given:
        why = "Nothing to change: give a label or a place"
        raise ClientError("INVALID_ARGUMENT", why, "See: neo fleet node update --help")
    with connect(profile_of(context)) as client:
        found = find(client, node)
        request: dict[str, Any] = {"id": found.id, "labels": labels, "remove_labels": remove_label or []}
        client.call(f"{SERVICE}/Update", {**request, "topology": given} if given else request)
    say(f"Changed. See: neo fleet node get {name_of(found)}")


def _label(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise ClientError("INVALID_ARGUMENT", f"{text!r} is not a label", "Write KEY=VALUE, e.g. team=vision")
    return key, value


def _rows(parts: "Sequence[PartHistory]", names: Mapping[str, str], wanted: str) -> Iterator[tuple[str, ...]]:
    """Yield a row for each node that says it has a part."""
    for part in parts:
        now = [each for each in part.places if not each.HasField("until")]
        for place in now:
            if wanted in ("", place.node_id):
                others = [each.node_id for each in now if each.node_id != place.node_id] + [*part.also_in]
                also = f"also in {', '.join(names.get(each, each) for each in others)}" if others else ""
                yield (
                    *(names.get(place.node_id, place.node_id), part.kind, place.slot, part.model or "-"),
                    *(part.serial, place.firmware or "-", place.reader, str(part.failures)),
                    "; ".join(each for each in (also, part.lemon) if each) or "-",
                )


def _without_serial(nodes: "Iterable[Node]") -> Iterator[tuple[str, ...]]:
    """Yield a row for each part that has no serial number, and so no history."""
    for node in nodes:
        for part in node.inventory.parts if node.HasField("inventory") else ():
            if not part.serial:
                told = part.kind, part.slot, part.model or "-", "-", part.firmware or "-"
                yield name_of(node), *told, node.inventory.reader, "-", "-"


def _changes(
    parts: "Sequence[PartHistory]", names: Mapping[str, str], wanted: str
) -> Iterator[tuple[str, ...]]:
    """Yield what changed at each place of each node."""

    def slot(found: "tuple[PartHistory, PartPlace]") -> tuple[str, str, str]:
        return found[1].node_id, found[0].kind, found[1].slot

    found = [(part, place) for part in parts for place in part.places if wanted in ("", place.node_id)]
    found.sort(key=lambda each: (slot(each), each[1].since.ToNanoseconds()))
    for (node_id, kind, name), group in groupby(found, key=slot):
        before: tuple[PartHistory, PartPlace] | None = None
        for part, place in group:
            yield _time(place.since), names.get(node_id, node_id), kind, name, _change(before, part, place)
            before = part, place
        if before and before[1].HasField("until"):
            at = _time(before[1].until)
            yield at, names.get(node_id, node_id), kind, name, f"{before[0].serial} removed"


def _change(before: "tuple[PartHistory, PartPlace] | None", part: "PartHistory", place: "PartPlace") -> str:
    if before is None or before[1].until.ToNanoseconds() < place.since.ToNanoseconds():
        return f"{part.serial} added"
    if before[0].serial == part.serial:
        return f"{part.serial}: firmware {before[1].firmware or 'unknown'} -> {place.firmware or 'unknown'}"
    return f"{before[0].serial} -> {part.serial}"


def _time(at: "Timestamp") -> str:
    return f"{at.ToDatetime():%Y-%m-%d %H:%M:%S}"
