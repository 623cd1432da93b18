"""`neo audit`: list and export audit events."""

import json
import re
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from neocloud.cli.commands.billing import parse_date
from neocloud.cli.lazy import command_group
from neocloud.cli.output import Format, JsonObject, OutputOption, say, show, table
from neocloud.cli.resources.lookup import container_id_of
from neocloud.cli.storage.exports import ToBucketOption, exported
from neocloud.cli.target import profile_of
from neocloud.client.connection import Client, connect
from neocloud.client.errors import ClientError
from neocloud.client.profiles import Profile
from neocloud.core import contract

if TYPE_CHECKING:
    from neocloud.messages.nebius.audit.v2 import AuditEvent

LIST = "nebius.audit.v2.AuditEventService/List"
PAGE_SIZE = 500
_SPANS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}

SinceOption = Annotated[str, typer.Option("--since", help="Start: 30m, 12h, 7d, or a date in UTC.")]
UntilOption = Annotated[str, typer.Option("--until", help="End, UTC, exclusive. Default: now.")]
FilterOption = Annotated[str, typer.Option("--filter", help="Filter of events: \"status = 'ERROR'\".")]


class EventType(StrEnum):
    CONTROL_PLANE = "control-plane"
    DATA_PLANE = "data-plane"


TypeOption = Annotated[
    EventType,
    typer.Option(
        "--event-type", help="data-plane: requests to objects of buckets with object_audit_logging."
    ),
]
ParentOption = Annotated[
    str, typer.Option("--parent-id", help="Id or name of a project or tenant. Default: your tenant.")
]

app = command_group(
    """Audit events: changes and refused calls.

Examples:

  neo audit list --since 1d
  neo audit list --filter "status = 'ERROR' AND service.name = 'iam'"
  neo audit export --since 2026-11-01 > events.jsonl
"""
)


@app.command("list")
def list_events(
    context: typer.Context,
    since: SinceOption = "1d",
    until: UntilOption = "",
    which: FilterOption = "",
    event_type: TypeOption = EventType.CONTROL_PLANE,
    parent_id: ParentOption = "",
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of events.")] = 50,
    output: OutputOption = Format.TABLE,
) -> None:
    """Show the newest events. Fields of the filter: action, status, type, service.name,
    resource.metadata.id, .name, .type, resource.hierarchy.id, authentication.subject.name, ...

    Examples:

      neo audit list --since 2h --limit 10
      neo audit list --filter "action = 'delete' AND resource.metadata.type = 'disk'" -o json
      neo audit list --filter "regex(resource.metadata.name, '^prod-')"
      neo audit list --event-type data-plane --filter "resource.metadata.name = 'bank-data'"
    """
    profile, token = profile_of(context), ""
    items: list[AuditEvent] = []
    with connect(profile) as client:
        request = _request(client, profile, since, until, which, event_type, parent_id)
        while len(items) < limit:
            page = client.call(
                LIST, {**request, "page_size": min(limit - len(items), PAGE_SIZE), "page_token": token}
            )
            items += page.items
            token = page.next_page_token
            if not token:
                break
    rows = (
        (
            f"{contract.to_datetime(item.time):%Y-%m-%d %H:%M:%S}",
            item.authentication.subject.name,
            item.service.name,
            item.action,
            _resource(item),
            _outcome(item),
        )
        for item in items
    )
    view = table(["TIME", "WHO", "SERVICE", "ACTION", "RESOURCE", "OUTCOME"], rows)
    found = [contract.to_document(item) for item in items]
    show(output, found, view, empty="There are no events in that time.")


@app.command()
def export(
    context: typer.Context,
    since: SinceOption = "1d",
    until: UntilOption = "",
    which: FilterOption = "",
    event_type: TypeOption = EventType.CONTROL_PLANE,
    parent_id: ParentOption = "",
    cursor: Annotated[
        str, typer.Option(help="Continue where an earlier export stopped, with the same options.")
    ] = "",
    to_bucket: ToBucketOption = "",
) -> None:
    """Write events to stdout as JSON lines, newest first. If interrupted, it prints how to continue.

    With --to-bucket they become an object of a bucket, which appears once it is whole. In a folder it is
    named after the time that it covers, such as audit-20261101T000000Z-20261201T000000Z.jsonl.

    Examples:

      neo audit export --since 2026-11-01 --until 2026-12-01 > november.jsonl
      neo audit export --since 2026-11-01 --until 2026-12-01 --to-bucket s3://bank-logs/audit/
    """
    if to_bucket and cursor:
        raise ClientError("INVALID_ARGUMENT", "--cursor continues a file, and an object is written whole")
    profile, token, number = profile_of(context), cursor, 0
    try:
        with connect(profile) as client:
            request = _request(client, profile, since, until, which, event_type, parent_id)
            with exported(context, to_bucket, _object_name(request)) as out:
                while True:
                    page = client.call(LIST, {**request, "page_size": PAGE_SIZE, "page_token": token})
                    lines = (json.dumps(contract.to_dict(item), ensure_ascii=False) for item in page.items)
                    out("".join(f"{line}\n" for line in lines))
                    number, token = number + len(page.items), page.next_page_token
                    if not token:
                        break
    except BaseException:
        if token and not to_bucket:
            say(f"Stopped after {number} events. Continue with the same options and --cursor {token}")
        raise
    say(f"{number} events.")


def _request(
    client: Client,
    profile: Profile,
    since: str,
    until: str,
    which: str,
    event_type: EventType,
    parent_id: str,
) -> JsonObject:
    tenant = client.call("nebius.iam.v1.TenantService/Get", {"id": profile.tenant_id})
    return {
        "parent_id": container_id_of(client, profile, parent_id) if parent_id else profile.tenant_id,
        "start": _moment(since),
        "end": parse_date(until) if until else _moment("0m"),
        "filter": which,
        "event_type": event_type.name,
        "region": tenant.status.region or tenant.spec.region,
    }


def _object_name(request: JsonObject) -> str:
    start, end = (str(request[name]).replace("-", "").replace(":", "") for name in ("start", "end"))
    return f"audit-{start}-{end}.jsonl"


def _moment(text: str) -> str:
    span = re.fullmatch(r"(\d+)([mhdw])", text)
    if span is None:
        return parse_date(text)
    # A second more: the end is exclusive, and the latest events should be included.
    try:
        at = (
            datetime.now(UTC)
            - timedelta(**{_SPANS[span[2]]: int(span[1])})
            + timedelta(seconds=int(not int(span[1])))
        )
    except (OverflowError, ValueError) as error:
        raise ClientError(
            "INVALID_ARGUMENT", f"{text} is too long ago", "Write 30m, 12h, 7d, or a date such as 2026-11-01"
        ) from error
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def _resource(item: "AuditEvent") -> str:
    """Return the type and the name, such as "disk data"; of a refused create, also where it should be."""
    about = item.resource.metadata
    shown = f"{about.type} {about.name or about.id}".strip()
    if item.source == "/s3":
        key = contract.to_dict(item.request).get("parameters", {}).get("key", "")
        return f"s3://{about.name}/{key}"
    if item.action != "create" or not item.response.status_code:
        return shown
    wanted = contract.to_dict(item.request).get("parameters", {}).get("metadata", {}).get("name", "")
    return f"{item.type.split('.')[-2]} {wanted} in {shown}".replace("  ", " ")


def _outcome(item: "AuditEvent") -> str:
    if not item.response.status_code:
        statuses = item.DESCRIPTOR.fields_by_name["status"].enum_type
        assert statuses is not None
        return statuses.values_by_number[item.status].name.lower()
    return contract.Code(item.response.status_code).name
