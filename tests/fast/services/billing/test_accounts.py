"""Attribution of cost, and subtotals: whatever was used, the parts add up to the total exactly. BILL-03."""

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from neocloud.messages.nebius.compute.v1 import FilesystemSpec
from neocloud.messages.neocloud.inference.v1 import DeploymentSpec, ReplicaReservationSpec
from neocloud.messages.neocloud.slurm.v1 import ElasticWorkerSpec

from neocloud.core.clock import SystemClock
from neocloud.core.store.protocol import HistoryEntry
from neocloud.core.usage import CallerUsage, CountedUsage, Credit, CreditCause, UsageRecord
from neocloud.model_gateway.metering.ledger import open_ledger
from neocloud.model_gateway.metering.ledger_tables import RequestEnd, Reservation, ledger_file, ledger_reader
from neocloud.services import compute, inference, slurm
from neocloud.services.billing.api.accounts import stored_creators
from neocloud.services.billing.rules.accounts import (
    by_account,
    callers_by_line,
    creators,
    divided,
    subtotals,
)
from neocloud.services.billing.rules.cost import Line, rate, total
from neocloud.services.billing.rules.focus import product_of
from neocloud.services.billing.rules.price_list import default_price_list
from neocloud.services.compute.types import FILESYSTEM, NAMESPACE_LABEL
from neocloud.services.inference.types import REPLICA_RESERVATION, RESERVATION_HELD
from neocloud.services.slurm.types import ELASTIC_WORKER, WORKER_UP
from neocloud.testing.waiting import until
from tests.fast.services.billing.conftest import Bank

DAY = datetime(2026, 11, 1, tzinfo=UTC)
TOKENS = "million-tokens"
SKUS = ("cpu-e2.vcpu", "cpu-e2.memory", "disk.network-ssd", "gpu-h100-sxm.gpu", "unheard-of")
PROJECTS, PEOPLE = ("project-e00a", "project-e00b"), ("user-a", "user-b", "user-c")
CAUSE = CreditCause("worker-0", "fault", "boot:x", "it started again")


@st.composite
def held(draw: st.DrawFn) -> UsageRecord:
    begin = DAY + timedelta(seconds=draw(st.integers(0, 300_000)))
    return UsageRecord(
        resource_id=draw(st.sampled_from(("slurmcluster-e00a", "computedisk-e00b"))),
        resource_kind=draw(st.sampled_from(("neocloud.slurm.v1.Cluster", "nebius.compute.v1.Disk"))),
        resource_name="lab",
        parent_id=draw(st.sampled_from(PROJECTS)),
        sku=draw(st.sampled_from(SKUS)),
        units=draw(st.integers(1, 10**6)),
        start=begin,
        end=begin + timedelta(seconds=draw(st.integers(1, 200_000))),
    )


@st.composite
def called(draw: st.DrawFn) -> tuple[CountedUsage, list[CallerUsage]]:
    """Tokens that were sold at a price, and who used them."""
    price = draw(st.none() | st.decimals(0, 100, places=8))
    counts = draw(st.dictionaries(st.sampled_from(PEOPLE), st.integers(1, 10**12), min_size=1))
    usage = CountedUsage(
        resource_id="inferencedeployment-e00a",
        resource_kind="neocloud.inference.v1.Deployment",
        resource_name="llama-3.1-70b",
        parent_id=draw(st.sampled_from(PROJECTS)),
        sku=f"tokens.llama-3.1-70b.{draw(st.sampled_from(('input', 'output')))}",
        count=sum(counts.values()),
        start=DAY,
        end=DAY + timedelta(days=1),
        unit=TOKENS,
        unit_size=10**6,
        unit_price=price,
    )
    return usage, [
        CallerUsage(who, usage.resource_id, usage.parent_id, usage.sku, DAY.date(), price, count)
        for who, count in counts.items()
    ]


def is_called(line: Line) -> bool:
    return line.unit == TOKENS


@given(records=st.lists(held(), max_size=8), tokens=st.lists(called(), max_size=4), is_known=st.booleans())
def test_every_kind_of_parts_adds_up_to_the_total(
    *, records: list[UsageRecord], tokens: list[tuple[CountedUsage, list[CallerUsage]]], is_known: bool
) -> None:
    prices = default_price_list()
    credits = [Credit(record, CAUSE) for record in records[:2]]
    lines = rate([*records, *(usage for usage, _ in tokens)], prices, credits)
    shares = callers_by_line([each for _, used in tokens for each in used] if is_known else [])
    found = by_account(
        lines, lambda resource_id: "user-a" if "slurm" in resource_id else "", shares, is_called
    )
    for keyed in (
        [(product_of(line), line) for line in lines],
        [(line.parent_id, line) for line in lines],
        [(each.account_id, each.line) for each in found],
    ):
        parts = subtotals(keyed)
        assert sum((part.cost for part in parts), Decimal(0)) == total(lines)
        assert any(part.has_unpriced for part in parts) == any(line.cost is None for line in lines)
    assert sum(each.line.quantity for each in found) == sum(line.quantity for line in lines)
    known = {who for _, used in tokens for who in (each.account_id for each in used)}
    assert {each.account_id for each in found if is_called(each.line)} == (
        (known if is_known else {""}) if tokens else set()
    )


@given(
    st.integers(-(10**15), 10**15).map(lambda millionths: Decimal(millionths).scaleb(-6)),
    st.lists(st.integers(1, 10**12), min_size=1, max_size=20),
)
def test_a_part_is_at_most_a_millionth_from_its_share(amount: Decimal, weights: list[int]) -> None:
    parts = divided(amount, weights)
    assert sum(parts) == amount
    for part, weight in zip(parts, weights, strict=True):
        # In integers: a Decimal has 28 digits, and a share may need more.
        error = int(part.scaleb(6)) * sum(weights) - int(amount.scaleb(6)) * weight
        assert abs(error) < sum(weights), (part, weight)


def test_who_created_it_or_what_made_it_and_nothing_made_up() -> None:
    created = {"cluster": "ann", "fs-of-ann": "ann", "loop-b": ""}
    owners = {"worker": "cluster", "deep": "worker", "loop-a": "loop-b", "loop-b": "loop-a", "orphan": "gone"}

    def owner_of(resource_id: str) -> str:
        return owners.get(resource_id, "")

    names = ("cluster", "worker", "deep", "orphan", "loop-a", "unheard-of")
    found = creators(names, lambda resource_id: created.get(resource_id, ""), owner_of)
    assert found == {
        "cluster": "ann", "worker": "ann", "deep": "ann", "orphan": "", "loop-a": "", "unheard-of": "",
    }  # fmt: skip


def test_the_price_list_s_tokens_are_not_shared_out_like_those_that_were_sold() -> None:
    line = Line("d", "k", "n", date(2026, 11, 1), "tokens.m.input", Decimal("1.000000"), TOKENS,
                Decimal("0.13"), Decimal("0.130000"), "p")  # fmt: skip
    used = [
        CallerUsage("ann", "d", "p", "tokens.m.input", date(2026, 11, 1), Decimal("0.13"), 5),
        CallerUsage("bob", "d", "p", "tokens.m.input", date(2026, 11, 1), None, 5),
    ]
    [found] = by_account([line], lambda _: "", callers_by_line(used), is_called)
    assert found.account_id == "bob" and found.line == line


async def test_the_ledger_says_who_used_what_it_counts(tmp_path: Path) -> None:
    """Also once its rows are sums of hours; together they are what it says to the bill."""
    ledger = open_ledger(ledger_file(tmp_path), SystemClock())
    now = int(SystemClock().now().timestamp() * 1000)
    for number, subject in enumerate(("ann", "bob", "ann")):
        name, at = f"chat-{number}", now - 1000
        ids = ("tenant", "project-e00a", subject, "deployment", "llama-3.1-70b")
        ledger.write(Reservation(name, *ids, 10, 10, 10, 100, 100, at))
        ledger.write(RequestEnd(name, at, 100 * (number + 1), 20, 7, "ok", 0))
    await ledger.flush()
    ledger.close()
    reader, window = ledger_reader(tmp_path), (DAY, datetime.now(UTC) + timedelta(hours=1))
    used = list(reader.by_caller(["project-e00a"], *window))
    by_sku = {usage.sku: usage.count for usage in reader(["project-e00a"], *window)}
    sums: dict[str, int] = {}
    for each in used:
        sums[each.sku] = sums.get(each.sku, 0) + each.count
    assert sums == by_sku and {each.account_id for each in used} == {"ann", "bob"}
    inputs = {each.account_id: each.count for each in used if each.sku.endswith(".input")}
    assert inputs == {"ann": 80 + 280, "bob": 180}
    assert list(reader.by_caller([], *window)) == list(
        ledger_reader(tmp_path / "none").by_caller(["p"], *window)
    )


@pytest.mark.parametrize(
    ("service", "kind", "state", "spec", "labels"),
    [
        (slurm, ELASTIC_WORKER, WORKER_UP, ElasticWorkerSpec(cluster_id="made-it"), {}),
        (
            inference,
            REPLICA_RESERVATION,
            RESERVATION_HELD,
            ReplicaReservationSpec(deployment_id="made-it", charge=DeploymentSpec.BY_HOUR),
            {},
        ),
        (
            compute,
            FILESYSTEM,
            "READY",
            FilesystemSpec(size_gibibytes=64, type=FilesystemSpec.FilesystemType.NETWORK_SSD),
            {NAMESPACE_LABEL: "made-it"},
        ),
    ],
)
def test_what_a_resource_made_names_it_also_when_both_are_gone(
    service: Any, kind: str, state: str, spec: Any, labels: dict[str, str]
) -> None:
    if "platform" in spec.DESCRIPTOR.fields_by_name:
        spec.platform, spec.preset = "cpu-local", "2vcpu-4gb"
    entry = HistoryEntry("child", kind, "project-e00a", "n", DAY, state, 1, spec.SerializeToString(), labels)
    gone = replace(entry, at=DAY + timedelta(hours=1), is_deleted=True)
    found = [
        record
        for meter in service.SERVICE.meters
        if kind in meter.kinds
        for record in meter([entry, gone], DAY, DAY + timedelta(days=1))
    ]
    assert found and {record.owner_id for record in found} == {"made-it"}


def creator_in(bank: Bank) -> str:
    """Return the account that calls in these tests."""
    credentials: Any = bank.running.first.credentials
    return credentials["subject-credentials"]["sub"]


async def test_the_bill_says_who_created_and_who_called(bank: Bank, tmp_path: Path) -> None:
    ledger = open_ledger(ledger_file(tmp_path), SystemClock())
    now = int(SystemClock().now().timestamp() * 1000)
    for name, subject in (("one", "serviceaccount-e00ann"), ("two", "serviceaccount-e00bob")):
        ids = (bank.tenant_id, bank.project_id, subject, "deployment", "llama-3.1-70b")
        ledger.write(Reservation(name, *ids, 13 * 10**6, 13 * 10**6, 40 * 10**6, 9, 9, now))
        ledger.write(RequestEnd(name, now, 6001, 0, 3, "ok", 0))
    await ledger.flush()
    ledger.close()
    spec = {"size_gibibytes": 730, "type": "NETWORK_SSD"}
    volume = await bank.create("nebius.compute.v1.Filesystem", "data", spec)
    await bank.until(volume, "READY")

    async def report() -> Any:
        call = "neocloud.billing.v1.UsageService/GetReport"
        return await bank.call(call, parent_id=bank.project_id, by_account=True)

    def has_all(found: Any) -> bool:
        return len({line.resource_id for line in found.lines}) == 2

    found = await until(report, holds=has_all, poll_seconds=0.1)
    creator = creator_in(bank)
    assert {line.account_id for line in found.lines if line.resource_id == volume} == {creator}
    called_by = {line.account_id: line.sku for line in found.lines if line.unit == TOKENS}
    assert set(called_by) == {"serviceaccount-e00ann", "serviceaccount-e00bob"}
    parts = {part.key: Decimal(part.cost) for part in found.by_account}
    assert set(parts) == {creator, *called_by}
    for subtotal in (found.by_account, found.by_product, found.by_project):
        assert sum(Decimal(part.cost) for part in subtotal) == Decimal(found.total_cost)
    assert {part.key for part in found.by_product} == {"Shared file systems", "Model gateway"}
    assert [part.key for part in found.by_project] == [bank.project_id]
    plain = await bank.bill("GetReport")
    assert all("accountId" not in line for line in plain["lines"]) and "byAccount" not in plain


@pytest.mark.parametrize("verb", ["Update", "Delete"])
async def test_who_only_changed_what_the_cloud_made_did_not_create_it(bank: Bank, verb: str) -> None:
    """The filesystem of a cluster: a later change does not make its caller the one who ordered it."""
    spec = {"size_gibibytes": 730, "type": "NETWORK_SSD"}
    volume = await bank.create("nebius.compute.v1.Filesystem", "data", spec)
    store = bank.running.store
    mine = await store.read(lambda tx: stored_creators(tx, {volume}, {volume: "slurmcluster-e00other"}))
    assert mine == {volume: creator_in(bank)}, "a label says nothing then"
    [made], _ = await store.read(lambda tx: tx.list_operations(resource_id=volume))
    changed = replace(made, id="operation-e00x", resource_id="computefilesystem-e00child",
                      method=f"nebius.compute.v1.FilesystemService/{verb}")  # fmt: skip
    await store.write(lambda tx: tx.insert_operation(changed))
    child = {"computefilesystem-e00child"}
    assert set((await store.read(lambda tx: stored_creators(tx, child, {}))).values()) == {""}
    owned = await store.read(lambda tx: stored_creators(tx, child, {"computefilesystem-e00child": volume}))
    assert set(owned.values()) == {creator_in(bank)}

    def change_often(tx: Any) -> None:
        for number in range(150):
            later = replace(changed, id=f"operation-e00n{number}", resource_id=volume, created_by="bob")
            tx.insert_operation(replace(later, resource_version=number + 2))

    await store.write(change_often)
    found = await store.read(lambda tx: stored_creators(tx, {volume}, {}))
    assert found == {volume: creator_in(bank)}, "however often others have changed it"
