"""Audit events of calls that need no token: who signed in, and who was refused. Secrets never reach it.

Such a call has no subject for the server to write down; whoever handles it finds out who it was.
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
"""Where the server puts the caller's address among the headers."""
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
    """It belongs to the subject's tenant, or to the resource's when nobody is known. Of what lies elsewhere
    only the id is told that was asked for."""
    rows = list(lineage(resource_id, tx.get))
    tenant_id = subject.tenant_id if subject else rows[-1].id if rows else ""
    if not rows or rows[-1].id != tenant_id:
        rows = []
    service, _, verb = method.partition("/")
    vendor, brick, *_, name = service.split(".")
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
            service=brick,
            action=action,
            type=f"ai.{vendor}.{brick}.{name.removesuffix('Service').lower()}.{action}",
            status="ERROR" if error else "DONE",
            subject_kind=subject.kind if subject else "",
            subject_name=subject.name if subject else "",
            source_address=call.headers.get(SOURCE, ""),
            user_agent=call.headers.get("user-agent", "")[:_MAX_TEXT],
        )
    )


def note_nothing(tx: Transaction) -> None:
    """Work like that of an event, for a refusal that must take as long and has nobody to be told to. Keeping
    one for every address that somebody makes up would let anybody fill the disk."""
    tx.put_secret(SECRETS_ID, "nobody", b"refused")


def _noun(kind: str) -> str:
    return kind.rpartition(".")[2].lower()
