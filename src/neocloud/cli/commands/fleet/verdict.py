"""`neo fleet verdict`: failing verdicts of checks, and what people say of them."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from neocloud.cli.commands.fleet.node_lookup import place_of
from neocloud.cli.lazy import command_group
from neocloud.cli.output import Format, OutputOption, say, show, table
from neocloud.cli.resources.lookup import Connected
from neocloud.cli.target import profile_of
from neocloud.client.connection import connect
from neocloud.client.errors import ClientError
from neocloud.core import contract
from neocloud.fleet.nodes.events import threshold_in_words

if TYPE_CHECKING:
    from neocloud.messages.neocloud.fleet.v1 import FailingVerdict

SERVICE = "neocloud.fleet.v1.VerdictService"

app = command_group(
    """Failing verdicts of checks, and whether they were right. For operators of the cloud.

A check drains nodes once enough of its verdicts were judged by an independent test or by you.

Examples:

  neo fleet verdict list
  neo fleet verdict judge bank/worker-0 mount_missing-17 --confirm
  neo fleet checks records
"""
)


@app.command("list")
def list_verdicts(
    client: Connected,
    every: Annotated[
        bool, typer.Option("--all", help="Also those of checks that may drain nodes, and judged ones.")
    ] = False,
    output: OutputOption = Format.TABLE,
) -> None:
    """List the failing verdicts of checks in shadow that are not judged yet, newest first.

    Examples:

      neo fleet verdict list
      neo fleet verdict list --all --output json
    """
    items = client.list_all(f"{SERVICE}/List")
    found = [each for each in items if every or (each.shadow and not each.HasField("judgement"))]
    rows = (
        (
            place_of(each.cluster_name or each.cluster_id, each.node),
            each.verdict.id,
            each.verdict.check,
            f"{each.verdict.at.ToDatetime():%Y-%m-%d %H:%M:%S}",
            f"{each.verdict.sample} ({threshold_in_words(each.verdict.threshold)})",
            each.verdict.source,
            _judged(each),
        )
        for each in found
    )
    view = table(["NODE", "VERDICT", "CHECK", "AT, UTC", "MEASURED", "SOURCE", "JUDGED"], rows)
    waiting = "No verdict waits for a judgement. All: neo fleet verdict list --all"
    empty = "No check has failed on a node that is watched." if every else waiting
    show(output, [contract.to_document(each) for each in found], view, empty=empty)


@app.command()
def judge(
    context: typer.Context,
    node: Annotated[
        str,
        typer.Argument(
            metavar="CLUSTER/NODE", help="The cluster, by name or id, and the node: bank/worker-0."
        ),
    ],
    verdict: Annotated[str, typer.Argument(help="The id of the verdict, as listed.")],
    confirm: Annotated[bool, typer.Option("--confirm", help="The node had this fault.")] = False,
    refute: Annotated[bool, typer.Option("--refute", help="The node did not have it.")] = False,
) -> None:
    """Say whether a failing verdict was right, after a look at the node. It counts for the check's record.

    You can change your mind: the last judgement of a verdict counts. Your name is kept with it.

    Examples:

      neo fleet verdict judge bank/worker-0 mount_missing-17 --confirm
      neo fleet verdict judge bank/worker-0 disk_write-1f --refute
    """
    if confirm is refute:
        raise ClientError("INVALID_ARGUMENT", "Say what you found: either --confirm or --refute")
    cluster, _, name = node.partition("/")
    with connect(profile_of(context)) as client:
        for each in client.list_all(f"{SERVICE}/List"):
            is_of_node = cluster in (each.cluster_id, each.cluster_name) and each.node == name
            if is_of_node and each.verdict.id == verdict:
                request = {
                    "id": each.node_id,
                    "verdict": verdict,
                    "finding": "CONFIRMED" if confirm else "REFUTED",
                }
                _say_record(client.call(f"{SERVICE}/Judge", request))
                return
    raise ClientError(
        "NOT_FOUND",
        f"{node} has no failing verdict {verdict!r}",
        "Write both as they are in: neo fleet verdict list --all",
    )


def _judged(found: "FailingVerdict") -> str:
    if found.HasField("judgement"):
        return f"{'right' if found.judgement.is_confirmed else 'wrong'} ({found.judgement.by})"
    return f"waits for {found.judged_by}" if found.judged_by else "waits for you"


def _say_record(found: Any) -> None:
    told = "right" if found.judgement.is_confirmed else "wrong"
    say(f"{found.verdict.id} of {found.node} was {told}.")
    say(
        f"{found.verdict.check} drains no node: {found.shadow}"
        if found.shadow
        else "Its check may drain nodes."
    )
