"""Audit events of calls that need no token: sign-ins and their refusals. They hold no secrets.

The server knows no subject of such a call, so its handler finds the subject and writes the event.
"""

import json
import re

from neocloud.core import contract
from neocloud.core.readers import Subject
from neocloud.core.service import Call
from neocloud.core.store.audit_query import AuditEvent
from neocloud.core.store.protocol import Transaction
from neocloud.services.iam.types import SECRETS_ID, lineage

SOURCE = ":source"
"""The header in which the server passes the caller's address."""
_MAX_TEXT = 512


def write_event(
    tx: Transaction,
    call: Call,
    method: str,
    subject: Subject | None,
    resource_id: str,
    *,
    error: contract.ApiError | None = None,
) -> None:
    """Write an event of the subject's tenant, or of the resource's tenant when there is no subject. Of a
    resource in another tenant, it has only the id."""
    rows = list(lineage(resource_id, tx.get))
    tenant_id = subject.tenant_id if subject else rows[-1].id if rows else ""
    if not rows or rows[-1].id != tenant_id:
        rows = []
    service, _, verb = method.partition("/")
    vendor, service_name, *_, name = service.split(".")
    action = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", verb).lower()
    hierarchy = [[row.id, row.name, _noun(row.kind)] for row in reversed(rows)]
    tx.audit(
        AuditEvent(
            id=contract.new_id("auditevent"),
            at=call.dependencies.clock.now(),
            subject=subject.id if subject else "",
            method=method,
            parent_id=rows[0].parent_id if rows else "",
            resource_id=resource_id,
            request_id=call.request_id,
            code=int(error.code if error else contract.Code.OK),
            message=error.message if error else "",
            tenant_id=tenant_id,
            hierarchy=json.dumps(hierarchy, ensure_ascii=False),
            resource_kind=_noun(rows[0].kind) if rows else "",
            resource_name=rows[0].name if rows else "",
            service=service_name,
            action=action,
            type=f"ai.{vendor}.{service_name}.{name.removesuffix('Service').lower()}.{action}",
            status="ERROR" if error else "DONE",
            subject_kind=subject.kind if subject else "",
            subject_name=subject.name if subject else "",
            source_address=call.headers.get(SOURCE, ""),
            user_agent=call.headers.get("user-agent", "")[:_MAX_TEXT],
        )
    )


def write_no_event(tx: Transaction) -> None:
    """Do as much work as for an event, for a refusal that must take equally long and belongs to no tenant. An
    event for every made-up address would let anybody fill the disk."""
    tx.put_secret(SECRETS_ID, "nobody", b"refused")


def _noun(kind: str) -> str:
    return kind.rpartition(".")[2].lower()
