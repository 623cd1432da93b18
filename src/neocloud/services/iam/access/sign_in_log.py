"""Audit events of calls that need no token: who signed in, and who was refused. Secrets never reach it."""

from neocloud.core import contract
from neocloud.core.service import Call, Subject
from neocloud.core.store.protocol import AuditEvent, Transaction
from neocloud.services.iam.resources import SECRETS_ID


def write_event(
    tx: Transaction,
    call: Call,
    method: str,
    subject: Subject | None,
    resource_id: str,
    *,
    error: contract.ApiError | None = None,
) -> None:
    service, _, verb = method.partition("/")
    tx.audit(
        AuditEvent(
            id=contract.new_id("auditevent"),
            at=call.dependencies.clock.now(),
            subject=subject.id if subject else "",
            method=method,
            parent_id=subject.tenant_id if subject else "",
            resource_id=resource_id,
            request_id=call.request_id,
            code=int(error.code if error else contract.Code.OK),
            message=error.message if error else "",
            tenant_id=subject.tenant_id if subject else "",
            service="iam",
            action=verb.lower(),
            status="ERROR" if error else "DONE",
            subject_kind=subject.kind if subject else "",
            subject_name=subject.name if subject else "",
        )
    )


def note_nothing(tx: Transaction) -> None:
    """As much work as an event, for a refusal that must take as long and has nobody to be told to. Keeping
    one for every address that somebody makes up would let anybody fill the disk."""
    tx.put_secret(SECRETS_ID, "nobody", b"refused")
