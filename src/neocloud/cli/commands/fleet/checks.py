"""`neo fleet checks`: what active checks of idle nodes found, and which nodes they cover."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from neocloud.cli.lazy import command_group
from neocloud.cli.output import Format, OutputOption, say, show, table
from neocloud.cli.resources.lookup import Connected
from neocloud.cli.resources.viewed import ListView, list_all
from neocloud.client.connection import Client
from neocloud.client.errors import ClientError
from neocloud.core import contract

if TYPE_CHECKING:
    from neocloud.messages.neocloud.fleet.v1 import HealthCheckCoverage, NodeHealth

SERVICE = "neocloud.fleet.v1.HealthCheckService"
DAY_SECONDS = 86400

app = command_group(
    """Active checks of idle nodes, and the records of all checks. For operators of the cloud.

Examples:

  neo fleet checks list
  neo fleet checks nodes
  neo fleet checks get bank/worker-0
  neo fleet checks records
"""
)


def _list_view() -> ListView:
    return ListView(
        {
            "CHECK": lambda check: check.name,
            "RUNS": _how_often,
            "NEEDS": lambda check: ", ".join(check.needs) or "-",
            "LIMIT": _limits,
            "WHAT": lambda check: check.title,
        }
    )


list_all(
    app,
    SERVICE,
    _list_view,
    "List the checks with their measurements, requirements, intervals and limits."
    "\n\nA check whose needs a node does not have is not run there, which is neither a pass nor a failure."
    "\n\nExamples:\n\n  neo fleet checks list\n  neo fleet checks list --output json",
)


@app.command()
def nodes(client: Connected, output: OutputOption = Format.TABLE) -> None:
    """Show how many nodes were tested in the last 7 days, and for each node what failed and when it is next.

    Examples:

      neo fleet checks nodes
      neo fleet checks nodes --output json
    """
    coverage = client.call(f"{SERVICE}/GetCoverage", {})
    found = list(client.list_all(f"{SERVICE}/ListNodes"))
    rows = (
        (
            _name(each),
            _time(each, "tested_at"),
            "yes" if each.is_covered else "no",
            _result(each),
            _time(each, "next_at"),
        )
        for each in found
    )
    view = table(["NODE", "TESTED", "COVERED", "RESULT", "NEXT"], rows)
    document = {
        "coverage": contract.to_document(coverage),
        "nodes": [contract.to_document(each) for each in found],
    }
    show(
        output,
        document,
        view,
        empty="No node is watched. See: neo slurm cluster create --help (--auto-repair)",
    )
    if output is Format.TABLE and found:
        say(f"\n{_coverage(coverage)}")


@app.command()
def get(
    client: Connected,
    node: Annotated[
        str,
        typer.Argument(
            metavar="CLUSTER/NODE", help="The cluster, by name or id, and the node: bank/worker-0."
        ),
    ],
    output: OutputOption = Format.TABLE,
) -> None:
    """Show the last answer of each check of a node.

    Examples:

      neo fleet checks get bank/worker-0
    """
    found = _find(client, node)
    rows = (
        (each.check, each.status, each.sample, each.threshold or "-", each.source or "-", _time(each, "at"))
        for each in found.results
    )
    view = table(["CHECK", "STATUS", "MEASURED", "THRESHOLD", "SOURCE", "AT"], rows)
    empty = f"Nothing yet; it is due {_time(found, 'next_at')}, once the node is idle."
    show(output, contract.to_document(found), view, empty=empty)
    if output is Format.TABLE:
        for text in _notes(found):
            say(text)


@app.command()
def records(client: Connected, output: OutputOption = Format.TABLE) -> None:
    """Show how often each check was right, whether it may drain nodes, and what it lacks.

    A check in shadow is recorded and drains nothing. It leaves the shadow once enough of its failing verdicts
    were judged by an independent test or a person, and at least half of them were right; one that becomes
    worse goes back.

    Examples:

      neo fleet checks records
      neo fleet checks records --output json
    """
    found = list(client.list_all(f"{SERVICE}/ListRecords"))
    rows = (
        (
            each.check,
            _mode(each),
            f"{each.confirmed} of {each.judged}",
            _precision(each),
            each.judged_by or "people",
            each.lacking.removeprefix("shadow: ") or "-",
        )
        for each in found
    )
    view = table(["CHECK", "MODE", "RIGHT", "PRECISION (95%)", "JUDGED BY", "LACKS"], rows)
    show(output, [contract.to_document(each) for each in found], view)


def _mode(record: Any) -> str:
    if not record.pools:
        return "no node is watched"
    if record.active_pools == record.pools:
        return "active" if not record.is_trusted or record.judged else "active, without a record"
    return f"active in {record.active_pools} of {record.pools}" if record.active_pools else "shadow"


def _precision(record: Any) -> str:
    if not record.judged:
        return "-"
    return f"{record.precision:.2f} ({record.lower:.2f} to {record.upper:.2f})"


def _notes(node: "NodeHealth") -> Iterator[str]:
    yield f"\nNext: {_time(node, 'next_at')}, once the node is idle."
    if node.problem:
        yield f"The last run ({_time(node, 'tried_at')}) did not end: {node.problem}"
    for each in node.results:
        if each.status == "fail" and each.shadow:
            yield f"{each.check} drains no node: {each.shadow}"


def _find(client: Client, named: str) -> "NodeHealth":
    cluster, _, name = named.partition("/")
    for node in client.list_all(f"{SERVICE}/ListNodes"):
        if cluster in (node.cluster_id, node.cluster_name) and node.name == name:
            return node
    raise ClientError(
        "NOT_FOUND",
        f"There is no node {named!r}",
        "Write CLUSTER/NODE as they are in: neo fleet checks nodes",
    )


def _name(node: "NodeHealth") -> str:
    return f"{node.cluster_name or node.cluster_id}/{node.name}"


def _how_often(check: Any) -> str:
    if not check.has_program:
        return "not in this release"
    return "daily" if "quick" in check.suites else "weekly"


def _limits(check: Any) -> str:
    shown = [f"{each.text} ({', '.join(each.models)})" if each.models else each.text for each in check.limits]
    return "; ".join(shown) or "its cohort"


def _result(node: "NodeHealth") -> str:
    if not node.results:
        return node.problem or "-"
    counts = {status: sum(each.status == status for each in node.results) for status in ("fail", "unknown")}
    bad = [each.check for each in node.results if each.status in counts]
    passed = sum(each.status == "pass" for each in node.results)
    left_out = sum(each.status == "not_run" for each in node.results)
    told = f"{passed} passed, {left_out} not run"
    return f"{', '.join(bad)} failed or gave no answer; {told}" if bad else told


def _coverage(coverage: "HealthCheckCoverage") -> str:
    share = 100 * coverage.covered / coverage.nodes
    days = coverage.period_seconds // DAY_SECONDS
    text = f"{coverage.covered} of {coverage.nodes} nodes ({share:.0f}%) were tested in the last {days} days."
    if coverage.preempted_runs:
        longest = coverage.longest_preemption_seconds
        of_all = f"{coverage.preempted_runs} of {coverage.runs} runs"
        text += f" {of_all} gave way to a job; the longest took {longest:.2f} s to end."
    return text


def _time(message: Any, field: str) -> str:
    if not message.HasField(field):
        return "-"
    return f"{getattr(message, field).ToDatetime():%Y-%m-%d %H:%M} UTC"
