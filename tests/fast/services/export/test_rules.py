"""Export rules over a real object gateway: what is written, once a period, and with whose rights."""

import asyncio
import csv
import io
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from neocloud.messages.neocloud.export.v1 import ExportRuleStatus

from neocloud.core.contract import Code
from neocloud.core.readers import ServiceRegistry
from neocloud.core.store.audit_query import AuditEvent
from neocloud.core.store.protocol import Transaction
from neocloud.core.usage import CountedUsage, UsageSource
from neocloud.services.export import reconcile
from neocloud.services.storage.object_writes import StoreObjectWrites
from tests import control_plane
from tests.fast.services.storage.cloud import AccessKey
from tests.fast.services.storage.served import ServedCloud

pytestmark = pytest.mark.slow

TODAY = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
DAY = timedelta(days=1)
FIRST, SECOND = TODAY - 4 * DAY, TODAY - 3 * DAY
"""The two days whose export is due."""
HOSTILE = 'a"}\n{"forged": 1}\x1b[2J=1'
RULES = "neocloud.export.v1.ExportRuleService"


def name_of(day: datetime, kind: str = "audit", suffix: str = "jsonl") -> str:
    return f"{kind}-{day:%Y%m%d}T000000Z-{day + DAY:%Y%m%d}T000000Z.{suffix}"


class Cloud(ServedCloud):
    owner: AccessKey

    async def rule(self, account: str = "", bucket: str = "logs", **spec: Any) -> str:
        """Return the id of a new rule, made with the token of an account."""
        mine, self.token = self.token, await self.token_of(account) if account else self.token
        try:
            return await self.create_rule(f"s3://{bucket}/kept", **spec)
        finally:
            self.token = mine

    async def create_rule(self, destination: str, **spec: Any) -> str:
        wanted = {"content": "AUDIT_LOG", "schedule": "DAILY", "destination": destination}
        wanted |= {"source_id": self.tenant_id, "start": f"{FIRST:%Y-%m-%dT%H:%M:%SZ}"}
        metadata = {"parent_id": self.project_id, "name": f"rule-{len(spec)}"}
        made = await self.call(f"{RULES}/Create", metadata=metadata, spec={**wanted, **spec})
        return made.resource_id

    async def refused(self, account: str = "", bucket: str = "logs", **spec: Any) -> tuple[str, str]:
        """Return with which code and message a rule is refused."""
        with pytest.raises(grpc.aio.AioRpcError) as found:
            await self.rule(account, bucket, **spec)
        assert not (await self.call(f"{RULES}/List", parent_id=self.project_id)).items
        return found.value.code().name, found.value.details() or ""

    async def written(self, rule_id: str, until: datetime) -> Any:
        """Return the rule once it has written until this time, at least."""
        return await self.when(
            rule_id, lambda rule: rule.status.written_until.ToDatetime(UTC) >= until, "ACTIVE"
        )

    async def objects(self, bucket: str = "logs") -> dict[str, bytes]:
        s3 = self.s3(self.owner.aws_id, self.owner.secret)

        def read() -> dict[str, bytes]:
            found = s3.list_objects_v2(Bucket=bucket).get("Contents", ())
            return {e["Key"]: s3.get_object(Bucket=bucket, Key=e["Key"])["Body"].read() for e in found}

        return await asyncio.to_thread(read)

    async def log(self, number: int, at: datetime, **changes: Any) -> None:
        event = AuditEvent(f"e{number}", at, "s", "nebius.x.v1.Y/Z", "", "", "q", 0, tenant_id=self.tenant_id)
        await self.running.store.write(lambda tx: tx.audit(replace(event, **changes)))

    async def forget_count(self, rule_id: str) -> None:
        """Forget what a rule has written."""

        def forget(tx: Transaction) -> None:
            row = tx.get(rule_id)
            assert row is not None
            tx.update(replace(row, status=ExportRuleStatus(state="ACTIVE").SerializeToString()))
            tx.enqueue(rule_id, datetime.now(UTC))

        await self.running.store.write(forget)

    async def auditor(self) -> tuple[str, str, str]:
        """Return an account that may export the log, its group, and its permit to read it."""
        account, group = await self.account("auditor"), await self.group("auditors-of-logs")
        await self.join(account, group)
        found = await self.call(
            "nebius.storage.v1.BucketService/GetByName", parent_id=self.project_id, name="logs"
        )
        await self.permit(group, found.metadata.id, "storage.objects.editor")
        await self.permit(group, self.project_id, "export.editor")
        return account, group, await self.permit(group, self.tenant_id, "audit.viewer")


def spending(projects: Sequence[str], start: datetime, end: datetime) -> Iterable[CountedUsage]:
    """A million tokens at noon of each day, of the first of the projects."""
    for at in (FIRST + DAY / 2, SECOND + DAY / 2):
        if projects and start <= at < end:
            yield CountedUsage(
                resource_id="inferencedeployment-e00x",
                resource_kind="neocloud.inference.v1.Deployment",
                resource_name="chat",
                parent_id=projects[0],
                sku="tokens.chat.input",
                count=10**6,
                start=at,
                end=at + timedelta(seconds=1),
                unit="million-tokens",
                unit_size=10**6,
                unit_price=Decimal("0.25"),
            )


@asynccontextmanager
async def served_cloud(home: Path) -> AsyncIterator[Cloud]:
    """May be entered again on the same home, as after a restart."""
    overrides = ServiceRegistry().add(UsageSource, spending)
    async with control_plane.cloud_in_process(home, overrides=overrides) as plain:
        found = Cloud(**vars(plain))
        async with found.serving():
            yield found


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what is due the same for a day from here, also where midnight passes."""
    monkeypatch.setattr(reconcile, "SETTLE", datetime.now(UTC) - (SECOND + DAY))
    monkeypatch.setattr(reconcile, "FAILED_SECONDS", 0.2)
    monkeypatch.setattr(reconcile, "ANSWER_SECONDS", 0.2)


@pytest.fixture
async def cloud(tmp_path: Path) -> AsyncIterator[Cloud]:
    async with served_cloud(tmp_path) as found:
        await found.bucket("logs")
        found.owner = await found.access_key(await found.account("owner", "editors"))
        yield found


async def test_each_day_of_the_log_is_an_object(cloud: Cloud) -> None:
    await cloud.log(1, FIRST, resource_name=HOSTILE)
    await cloud.log(2, SECOND - timedelta(microseconds=1))
    await cloud.log(3, SECOND)
    await cloud.log(4, SECOND, tenant_id="tenant-e00other")
    rule = await cloud.written(await cloud.rule(), SECOND + DAY)
    found = await cloud.objects()
    top = f"kept/{cloud.tenant_id}/"
    assert list(found) == [top + name_of(FIRST), top + name_of(SECOND)]
    assert rule.status.last_object == f"s3://logs/{top}{name_of(SECOND)}" and not rule.status.message
    first = [json.loads(line) for line in found[top + name_of(FIRST)].splitlines()]
    assert [event["id"] for event in first] == ["e1", "e2"], "oldest first, and not those of other tenants"
    assert first[0]["resource"]["metadata"]["name"] == HOSTILE
    assert [json.loads(line)["id"] for line in found[top + name_of(SECOND)].splitlines()] == ["e3"]


async def test_a_project_has_its_own_events_and_an_hour_without_any_is_an_empty_object(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconcile, "SETTLE", datetime.now(UTC) - (FIRST + DAY / 12))
    mine = json.dumps([[cloud.tenant_id, "bank", "t"], [cloud.project_id, "risk", "p"]])
    await cloud.log(1, FIRST, hierarchy=mine)
    await cloud.log(2, FIRST)
    await cloud.written(await cloud.rule(source_id="", schedule="HOURLY"), FIRST + DAY / 12)
    found = await cloud.objects()
    top = f"kept/{cloud.project_id}/audit-{FIRST:%Y%m%d}"
    first, second = (
        found[f"{top}T000000Z-{FIRST:%Y%m%d}T010000Z.jsonl"],
        f"{top}T010000Z-{FIRST:%Y%m%d}T020000Z.jsonl",
    )
    assert [json.loads(line)["id"] for line in first.splitlines()] == ["e1"] and found[second] == b""


async def test_each_day_of_the_bill_is_a_focus_file(cloud: Cloud) -> None:
    account = await cloud.account("finance", "editors")
    await cloud.written(await cloud.rule(account, content="FOCUS_BILL"), SECOND + DAY)
    found = await cloud.objects()
    for day in (FIRST, SECOND):
        text = found[f"kept/{cloud.tenant_id}/{name_of(day, 'focus', 'csv')}"].decode()
        (row,) = csv.DictReader(io.StringIO(text))
        assert (row["BilledCost"], row["SkuId"]) == ("0.250000", "tokens.chat.input")
        assert row["ChargePeriodStart"] == f"{day:%Y-%m-%dT%H:%M:%SZ}"
        report = await cloud.call(
            "neocloud.billing.v1.UsageService/GetReport",
            parent_id=cloud.tenant_id,
            start=row["ChargePeriodStart"],
            end=row["ChargePeriodEnd"],
        )
        assert report.total_cost == row["BilledCost"]


async def test_what_was_written_and_not_counted_is_written_once(cloud: Cloud) -> None:
    """The server was killed between the two."""
    await cloud.log(1, FIRST)
    rule_id = await cloud.rule()
    await cloud.written(rule_id, SECOND + DAY)
    before = await cloud.objects()

    await cloud.forget_count(rule_id)
    await cloud.when(rule_id, lambda rule: not rule.status.HasField("written_until"))
    rule = await cloud.written(rule_id, SECOND + DAY)
    assert not rule.status.message and await cloud.objects() == before


async def test_a_rule_goes_on_after_a_restart_from_an_object_that_was_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others, has_written, put_once = asyncio.all_tasks(), asyncio.Event(), StoreObjectWrites.put_once

    async def halting(self: StoreObjectWrites, *arguments: Any) -> None:
        await put_once(self, *arguments)
        has_written.set()
        await asyncio.Event().wait()

    async with served_cloud(tmp_path) as cloud:
        await cloud.bucket("logs")
        owner = cloud.owner = await cloud.access_key(await cloud.account("owner", "editors"))
        await cloud.log(1, FIRST)
        with monkeypatch.context() as patched:
            patched.setattr(StoreObjectWrites, "put_once", halting)
            rule_id = await cloud.rule()
            await has_written.wait()
        before = await cloud.objects()
        assert list(before) == [f"kept/{cloud.tenant_id}/{name_of(FIRST)}"]
    for each in asyncio.all_tasks() - others:
        each.cancel()  # as the end of the process does
    async with served_cloud(tmp_path) as cloud:
        cloud.owner = owner
        rule = await cloud.written(rule_id, SECOND + DAY)
        found = await cloud.objects()
        assert not rule.status.message and before.items() < found.items() and len(found) == 2


async def test_another_object_in_its_place_is_neither_taken_for_it_nor_replaced(cloud: Cloud) -> None:
    """A writer to the bucket could hide a day of the log, or forge it."""
    await cloud.log(1, FIRST)
    key = f"kept/{cloud.tenant_id}/{name_of(FIRST)}"
    await cloud.put(cloud.owner, "logs", key, b"forged\n")
    rule_id = await cloud.rule()
    rule = await cloud.until(rule_id, "FAILED")
    assert "is another object" in rule.status.message and not rule.status.HasField("written_until")
    assert await cloud.objects() == {key: b"forged\n"}, "no later day hides the gap"
    s3 = cloud.s3(cloud.owner.aws_id, cloud.owner.secret)
    await asyncio.to_thread(s3.delete_object, Bucket="logs", Key=key)
    await cloud.written(rule_id, SECOND + DAY)
    assert json.loads((await cloud.objects())[key])["id"] == "e1"


async def test_who_may_not_read_the_log_or_write_to_the_bucket_has_no_rule(cloud: Cloud) -> None:
    editor = await cloud.account("editor", "editors")
    code, message = await cloud.refused(editor)
    assert code == "PERMISSION_DENIED" and "audit.events.list" in message
    auditor, group = await cloud.account("auditor"), await cloud.group("rule-makers")
    await cloud.join(auditor, group)
    await cloud.permit(group, cloud.project_id, "export.editor")
    await cloud.permit(group, cloud.tenant_id, "auditor")
    code, message = await cloud.refused(auditor)
    assert code == "PERMISSION_DENIED" and "storage.objects.create" in message
    outsider = await cloud.account("outsider")
    assert (await cloud.refused(outsider, content="FOCUS_BILL"))[0] in ("PERMISSION_DENIED", "NOT_FOUND")
    assert not await cloud.objects()


async def test_a_rule_ends_with_the_right_of_its_account_and_goes_on_with_it(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    account, group, permit_id = await cloud.auditor()
    with monkeypatch.context() as patched:
        patched.setattr(reconcile, "SETTLE", timedelta(days=500))
        rule_id = await cloud.rule(account)
        await cloud.call("nebius.iam.v1.AccessPermitService/Delete", id=permit_id)
    await cloud.running.store.write(lambda tx: tx.enqueue(rule_id, datetime.now(UTC)))
    rule = await cloud.until(rule_id, "FAILED")
    assert "audit.events.list" in rule.status.message and not await cloud.objects()
    await cloud.permit(group, cloud.tenant_id, "audit.viewer")
    await cloud.written(rule_id, SECOND + DAY)
    await cloud.call("nebius.iam.v1.ServiceAccountService/Delete", id=account)
    s3 = cloud.s3(cloud.owner.aws_id, cloud.owner.secret)

    for key in await cloud.objects():
        await asyncio.to_thread(s3.delete_object, Bucket="logs", Key=key)
    await cloud.forget_count(rule_id)
    await cloud.until(rule_id, "FAILED")
    assert not await cloud.objects(), "nobody acts as an account that is gone"


async def test_buckets_and_logs_of_others_are_as_if_there_were_none(cloud: Cloud) -> None:
    other = await cloud.call(
        "nebius.iam.v1.ProjectService/Create", metadata={"parent_id": cloud.tenant_id, "name": "other"}
    )
    await cloud.bucket("others-logs", other.resource_id)
    refusals = [await cloud.refused(bucket=name) for name in ("others-logs", "absent-logs")]
    assert [code for code, _ in refusals] == ["NOT_FOUND", "NOT_FOUND"]
    assert refusals[0][1].replace("others-logs", "absent-logs") == refusals[1][1]
    tenant = replace(await row_of(cloud, cloud.tenant_id), id="tenant-e00outsider", name="outsider")
    await cloud.running.store.write(lambda tx: tx.insert(tenant))
    account, _, _ = await cloud.auditor()
    sources = [await cloud.refused(account, source_id=name) for name in (tenant.id, "tenant-e00absent")]
    assert sources[0][0] == sources[1][0] == "NOT_FOUND"
    assert sources[0][1].replace(tenant.id, "tenant-e00absent") == sources[1][1]


async def row_of(cloud: Cloud, resource_id: str) -> Any:
    row = await cloud.row(resource_id)
    assert row is not None
    return row


@pytest.mark.parametrize(
    ("field", "spec"),
    [
        ("spec.destination", {"destination": "logs/kept"}),
        ("spec.destination", {"destination": "s3:///kept"}),
        ("spec.start", {"start": "2999-01-01T00:00:00Z"}),
        ("spec.start", {"start": "1970-01-01T00:00:00Z"}),
        ("spec.content", {"content": 0}),
        ("spec.schedule", {"schedule": 7}),
    ],
)
async def test_what_is_not_legal_is_refused(cloud: Cloud, field: str, spec: dict[str, Any]) -> None:
    wanted = {"content": "AUDIT_LOG", "schedule": "DAILY", "destination": "s3://logs/kept"}
    error = await cloud.refusal(
        f"{RULES}/Create",
        metadata={"parent_id": cloud.project_id, "name": "all"},
        spec={**wanted, **spec},
    )
    assert error.code is Code.INVALID_ARGUMENT
    assert [each.field for each in error.details[0].bad_request.violations] == [field]


async def test_a_rule_of_today_waits_and_is_deleted(cloud: Cloud) -> None:
    rule_id = await cloud.rule(start=None)
    rule = await cloud.when(rule_id, lambda rule: not rule.status.reconciling, "ACTIVE")
    assert rule.spec.start.ToDatetime(UTC) >= TODAY and not rule.status.HasField("written_until")
    await cloud.call(f"{RULES}/Delete", id=rule_id)
    await cloud.gone(rule_id)
    assert not await cloud.objects()
