"""Validation rules of export rules, and their owners: accounts that may read what it exports, and create
objects at its destination. Both rights are checked again with each object.
"""

from collections.abc import Iterable, Mapping
from datetime import timedelta

from neocloud.core import contract
from neocloud.core.kind import Rules, Violation
from neocloud.core.readers import ResourceReader, Subject
from neocloud.core.store.protocol import Transaction
from neocloud.messages.neocloud.export.v1 import ExportRule, ExportRuleSpec
from neocloud.services.export.types import PERMISSIONS, write_actor
from neocloud.services.iam.types import CONTAINER, SignedRequests
from neocloud.services.storage.public import SCHEME, ObjectLocation, ObjectWrites, folder_place

MOST_DAYS = 366
"""How long ago the first period may be: a rule writes a few thousand objects at once, not millions."""


def folder_of(spec: ExportRuleSpec) -> ObjectLocation | None:
    """Return the folder of a rule's objects; None where the destination is not the URL of a folder."""
    bucket, _, prefix = spec.destination.removeprefix(SCHEME).partition("/")
    if not spec.destination.startswith(SCHEME) or not bucket:
        return None
    top = folder_place(bucket, prefix)
    return ObjectLocation(bucket, f"{top.key}{spec.source_id}/")


class ExportRuleRules(Rules[ExportRule]):
    def defaults(self, resource: ExportRule) -> None:
        resource.spec.source_id = resource.spec.source_id or resource.metadata.parent_id

    def quota_demand(self, resource: ExportRule) -> Mapping[str, int]:
        return {"export.rule.count": 1}

    def violations(
        self, new: ExportRule, old: ExportRule | None, reader: ResourceReader
    ) -> Iterable[Violation]:
        if folder_of(new.spec) is None:
            shown = new.spec.destination[:80]
            yield Violation("spec.destination", f'"{shown}" is not the URL of a folder: s3://BUCKET[/PREFIX]')
        if new.spec.HasField("start"):
            age = reader.now - contract.to_datetime(new.spec.start)
            if not timedelta(0) <= age <= timedelta(days=MOST_DAYS):
                yield Violation("spec.start", f"must be in the past, at most {MOST_DAYS} days ago")

    def complete(self, new: ExportRule, old: ExportRule | None, reader: ResourceReader) -> None:
        if not new.spec.HasField("start"):
            new.spec.start.FromDatetime(reader.now)
        subject, folder = reader.subject, folder_of(new.spec)
        if subject is None:
            raise contract.unauthenticated("This call needs a token; sign in first.")
        assert folder is not None, "Else `violations` refused it."
        requests, writes = reader.provided.get(SignedRequests), reader.provided.get(ObjectWrites)
        reader.write(lambda tx: _act_as(tx, subject, new, requests))
        reader.write(lambda tx: writes.allow(tx, subject, new.metadata, folder))


def _act_as(tx: Transaction, subject: Subject, rule: ExportRule, requests: SignedRequests) -> None:
    """Let the rule act as the subject. Raises ApiError unless it may read what is exported."""
    refusal = requests.refusal(tx, subject, PERMISSIONS[rule.spec.content], rule.spec.source_id)
    if refusal is not None:
        raise refusal
    source = tx.get(rule.spec.source_id)
    if source is None or source.kind != CONTAINER:
        raise contract.bad_field("spec.source_id", "must be the id of a tenant, or of a project in it")
    write_actor(tx, rule.metadata.id, subject.id)
