"""`neo billing`: exact sums of decimal strings, by resource, day or SKU."""

import json
from typing import Any

import pytest

from neocloud.core import contract
from tests.fast.cli.conftest import Neo
from tests.fast.cli.fake_control_plane import PROJECT, FakeServer

USAGE = "neocloud.billing.v1.UsageService"


def line(
    resource: str, day: str, cost: str, *, sku: str = "cpu-e2.vcpu", quantity: str = "0.1"
) -> dict[str, Any]:
    return {
        "resource_id": f"slurmcluster-e00{resource}", "resource_kind": "neocloud.slurm.v1.Cluster",
        "resource_name": resource, "day": day, "sku": sku, "quantity": quantity, "unit": "vcpu-hour",
        "unit_price": "0.012", "cost": cost, "is_unpriced": not cost,
    }  # fmt: skip


@pytest.fixture
def billed(cloud: FakeServer) -> FakeServer:
    lines = [
        line("bank", "2026-11-01", "0.1"),
        line("bank", "2026-11-02", "0.2"),
        line("lab", "2026-11-02", "1.0"),
        line("lab", "2026-11-02", "", sku="cpu-e2.fpga"),
    ]
    span = {"start": "2026-11-01T00:00:00Z", "end": "2026-11-03T00:00:00Z"}
    answer = {"lines": lines, "total_cost": "1.3", "currency": "USD", **span}
    cloud.serve(
        f"{USAGE}/GetReport", contract.from_dict(contract.method(f"{USAGE}/GetReport").output, answer)
    )
    record = {
        "resource_id": "slurmcluster-e00bank", "resource_kind": "neocloud.slurm.v1.Cluster",
        "resource_name": "bank", "sku": "cpu-e2.vcpu",
        "units": "4", "seconds": "90", "start": "2026-11-01T10:00:00Z",
    }  # fmt: skip
    usage = contract.from_dict(contract.method(f"{USAGE}/ListUsage").output, {"items": [record]})
    cloud.serve(f"{USAGE}/ListUsage", usage)
    return cloud


@pytest.mark.parametrize(
    ("by", "rows"),
    [
        ("resource", [["bank", "0.3"], ["lab", "price"], ["lab", "1.0"]]),
        ("day", [["2026-11-01", "0.1"], ["2026-11-02", "price"], ["2026-11-02", "1.2"]]),
        ("sku", [["cpu-e2.fpga", "price"], ["cpu-e2.vcpu", "1.3"]]),
    ],
)
def test_the_report_adds_up_exactly(
    signed_in: Neo, billed: FakeServer, by: str, rows: list[list[str]]
) -> None:
    """0.1 + 0.2 is 0.3 in money."""
    ran = signed_in("billing", "report", "--by", by)
    assert ran.code == 0, ran.err
    found = [words for words in (text.split() for text in ran.out.split("\n\n")[0].splitlines()[1:])]
    assert [[words[0], words[-1]] for words in found] == rows
    assert "Total 1.3 USD" in ran.out


CREDIT = {"part": "worker-2", "cause": "fault", "evidence": "boot:x", "reason": "it started again"}


def test_credits_are_lines_of_their_own_and_say_why(signed_in: Neo, cloud: FakeServer) -> None:
    taken = {**line("bank", "2026-11-01", "-0.1", quantity="-0.1"), "credit": CREDIT}
    span = {"start": "2026-11-01T00:00:00Z", "end": "2026-11-03T00:00:00Z"}
    lines = [line("bank", "2026-11-01", "0.3"), taken]
    answer = {"lines": lines, "total_cost": "0.2", "currency": "USD", **span}
    report = contract.method(f"{USAGE}/GetReport").output
    cloud.serve(f"{USAGE}/GetReport", contract.from_dict(report, answer))
    out = signed_in("billing", "report").out
    (row,) = [text for text in out.splitlines() if text.startswith("bank/worker-2: fault boot:x")]
    assert "cpu-e2.vcpu, credit" in row and row.split()[-1] == "-0.1" and "Total 0.2 USD" in out
    item = {"resource_name": "bank", "cause": CREDIT, "seconds": 90, "is_open": True, "amount": "0.1", **span}
    listed = {"items": [item], "total_amount": "0.1", "currency": "USD", **span}
    path = "neocloud.billing.v1.CreditService/List"
    cloud.serve(path, contract.from_dict(contract.method(path).output, listed))
    out = signed_in("billing", "credits").out
    (row,) = [text for text in out.splitlines() if text.startswith("bank/worker-2")]
    assert "fault boot:x" in row and "so far" in row and row.split()[-1] == "0.1"
    assert "Total 0.1 USD" in out


def test_what_has_no_price_is_said_and_not_counted_as_free(signed_in: Neo, billed: FakeServer) -> None:
    assert "Without a price, so not in the total: cpu-e2.fpga." in signed_in("billing", "report").err


def test_dates_are_utc_days(signed_in: Neo, billed: FakeServer) -> None:
    signed_in("billing", "report", "--from", "2026-11-01", "--to", "2026-11-03T02:00:00+02:00")
    [request] = billed.asked(f"{USAGE}/GetReport")
    assert contract.to_datetime(request.start).isoformat() == "2026-11-01T00:00:00+00:00"
    assert contract.to_datetime(request.end).isoformat() == "2026-11-03T00:00:00+00:00"
    assert request.parent_id == PROJECT


def test_a_date_that_is_none_is_misuse(signed_in: Neo, billed: FakeServer) -> None:
    ran = signed_in("billing", "report", "--from", "yesterday")
    assert ran.code == 2
    assert "'yesterday' is not a date. Write 2026-11-01" in ran.err


def test_usage_tells_how_long_what_was_used(signed_in: Neo, billed: FakeServer) -> None:
    ran = signed_in("billing", "usage")
    assert ran.out.splitlines()[1].split() == [
        "bank",
        "Cluster",
        "cpu-e2.vcpu",
        "4",
        "90",
        "s",
        "2026-11-01",
        "10:00",
    ]
    assert json.loads(signed_in("billing", "usage", "-o", "json").out)["items"][0]["seconds"] == "90"


def token_line(
    model: str, kind: str, quantity: str, cost: str, *, project: str = PROJECT, day: str = "2026-11-01"
) -> dict[str, Any]:
    return {
        **line(model, day, cost, sku=f"tokens.{model}.{kind}", quantity=quantity),
        "unit": "million-tokens",
        "parent_id": project,
    }


def test_tokens_are_added_up_by_project_and_model(signed_in: Neo, cloud: FakeServer) -> None:
    """AIS-14: in, cached in and out, to the token; a model without a price says so."""
    lines = [
        token_line("bank", "input", "0.000001", "0.000002"),
        token_line("bank", "input", "1.234567", "2.469134", day="2026-11-02"),
        token_line("bank", "cached-input", "0.5", "0.1"),
        token_line("bank", "output", "3", "9.000001"),
        token_line("lab", "output", "3", "9", project="project-z"),
        token_line("free", "input", "0.000007", ""),
        line("vm", "2026-11-01", "0.1"),
    ]
    span = {"start": "2026-11-01T00:00:00Z", "end": "2026-11-03T00:00:00Z"}
    report = {"lines": lines, "total_cost": "1.3", "currency": "USD", **span}
    output = contract.method(f"{USAGE}/GetReport").output
    cloud.serve(f"{USAGE}/GetReport", contract.from_dict(output, report))
    ran = signed_in("billing", "tokens")
    assert ran.code == 0, ran.err
    assert [row.split() for row in ran.out.splitlines()[1:]] == [
        [PROJECT, "bank", "1234568", "500000", "3000000", "11.569137"],
        [PROJECT, "free", "7", "0", "0", "no", "price"],
        ["project-z", "lab", "0", "0", "3000000", "9"],
    ]
    items = json.loads(signed_in("billing", "tokens", "--output", "json").out)["items"]
    assert items[0] == {
        "project": PROJECT, "model": "bank", "input": 1234568, "cached-input": 500000,
        "output": 3000000, "cost": "11.569137",
    }  # fmt: skip
    by_project = signed_in("billing", "report", "--by", "project").out
    assert [row.split()[0] for row in by_project.splitlines() if "lab" in row] == ["project-z"]


def test_counted_usage_has_no_duration(signed_in: Neo, cloud: FakeServer) -> None:
    record = {
        "resource_id": "d", "resource_kind": "a.Deployment", "resource_name": "bank",
        "sku": "tokens.bank.input", "count": "1234567", "start": "2026-11-01T10:00:00Z",
    }  # fmt: skip
    output = contract.method(f"{USAGE}/ListUsage").output
    cloud.serve(f"{USAGE}/ListUsage", contract.from_dict(output, {"items": [record]}))
    row = signed_in("billing", "usage").out.splitlines()[1].split()
    assert row == ["bank", "Deployment", "tokens.bank.input", "1,234,567", "-", "2026-11-01", "10:00"]


def test_what_models_cost_is_listed_and_computed(signed_in: Neo, cloud: FakeServer) -> None:
    """AIS-16."""
    service = "neocloud.billing.v1.TokenPriceService"
    model = {
        "model": "phi-3-mini", "input": "0.04", "cached_input": "0.04", "output": "0.12",
        "context_length": "4096", "license": "MIT", "tokens_per_minute": "200000",
    }  # fmt: skip
    listed = contract.from_dict(contract.method(f"{service}/List").output, {"items": [model]})
    cloud.serve(f"{service}/List", listed)
    row = signed_in("billing", "models").out.splitlines()[1].split()
    assert row == ["phi-3-mini", "0.04", "0.04", "0.12", "4k", "200,000", "MIT"]
    answer = {"cost": "0.00158", "cost_per_request": "0.00158", "currency": "USD"}
    cost = {"sku": "tokens.x.input", "tokens": "6000", "unit_price": "0.13", "cost": "0.00078"}
    output = contract.method(f"{service}/Estimate").output
    cloud.serve(f"{service}/Estimate", contract.from_dict(output, {**answer, "items": [cost]}))
    ran = signed_in("billing", "estimate", "llama-3.1-70b", "--input", "6000", "--answer", "2000")
    assert "6,000" in ran.out and "Total 0.00158 USD; 0.00158 per request" in ran.out


def test_the_pages_of_a_focus_report_are_one_file(signed_in: Neo, cloud: FakeServer) -> None:
    """The window is the answer's: it names the object, and a page without rows ends nothing."""
    answer = contract.method(f"{USAGE}/GetFocusReport").output
    pages = {"": ("A,B\n1,2\n", "second"), "second": ("", "third"), "third": ("3,4\n", "")}

    def page(request: Any) -> Any:
        text, following = pages[request.page_token]
        return answer(csv=text, next_page_token=following)

    cloud.serve(f"{USAGE}/GetFocusReport", page)
    ran = signed_in("billing", "report", "--format", "focus", "--from", "2026-11-01")
    assert (ran.code, ran.out) == (0, "A,B\n1,2\n3,4\n")
    asked = cloud.asked(f"{USAGE}/GetFocusReport")
    assert len({(each.parent_id, each.start.seconds) for each in asked}) == 1 and len(asked) == 3
    refused = signed_in("billing", "report", "--format", "focus", "--output", "json")
    assert refused.code != 0 and "leave out --output" in refused.err


def test_subtotals_add_up_to_the_total(signed_in: Neo, billed: FakeServer) -> None:
    table, parts, end = signed_in("billing", "report").out.split("\n\n")
    assert len(table.splitlines()) == 4
    assert [row.split(maxsplit=1) for row in parts.splitlines()] == [
        ["RESOURCE", "SUBTOTAL"],
        ["bank", "0.3"],
        ["lab", "1.0, and what has no price"],
    ]
    assert end.startswith("Total 1.3 USD")
    out = signed_in("billing", "report", "--by", "sku").out
    assert "SUBTOTAL" not in out, "each group is a row already"


def test_a_credit_is_in_the_subtotal_of_what_it_is_a_part_of(signed_in: Neo, cloud: FakeServer) -> None:
    taken = {**line("bank", "2026-11-01", "-0.1", quantity="-0.1"), "credit": CREDIT}
    memory = line("bank", "2026-11-01", "0.05", sku="cpu-e2.memory")
    serve_report(cloud, [line("bank", "2026-11-01", "0.3"), memory, taken], "0.25")
    parts = signed_in("billing", "report").out.split("\n\n")[1]
    assert parts.splitlines()[1].split() == ["bank", "0.25"]


ANN, CI, GONE = "tenantuseraccount-e00ann", "serviceaccount-e00ci", "serviceaccount-e00gone"


def serve_report(cloud: FakeServer, lines: list[dict[str, Any]], total: str) -> None:
    span = {"start": "2026-11-01T00:00:00Z", "end": "2026-11-03T00:00:00Z"}
    answer = {"lines": lines, "total_cost": total, "currency": "USD", **span}
    path = f"{USAGE}/GetReport"
    cloud.serve(path, contract.from_dict(contract.method(path).output, answer))


@pytest.fixture
def of_accounts(cloud: FakeServer) -> FakeServer:
    whose = [(ANN, "bank"), (CI, "lab"), (GONE, "old"), ("", "older")]
    serve_report(
        cloud, [line(name, "2026-11-01", "0.25") | {"account_id": who} for who, name in whose], "1.00"
    )
    return cloud


def by_account(signed_in: Neo) -> dict[str, str]:
    ran = signed_in("billing", "report", "--by", "account")
    assert ran.code == 0, ran.err
    rows = ran.out.split("\n\n")[0].splitlines()[1:]
    return {row.split("  ")[0]: row.split()[-1] for row in rows}


def test_the_report_by_account_names_whom_the_caller_may_see(signed_in: Neo, of_accounts: FakeServer) -> None:
    def account(request: Any) -> Any:
        if request.id != CI:
            raise contract.not_found("service account", request.id)
        found = contract.method("nebius.iam.v1.ServiceAccountService/Get").output()
        found.metadata.name = "ci"
        return found

    of_accounts.serve("nebius.iam.v1.ServiceAccountService/Get", account)
    people = "nebius.iam.v1.TenantUserAccountWithAttributesService/List"
    ann = {
        "tenant_user_account": {"metadata": {"id": ANN}},
        "attributes": {"email": "ann@bank.example"},
    }
    of_accounts.serve(people, contract.from_dict(contract.method(people).output, {"items": [ann]}))
    assert by_account(signed_in) == dict.fromkeys(("ann@bank.example", "ci", GONE, "not known"), "0.25")
    assert of_accounts.asked(f"{USAGE}/GetReport")[0].by_account


def test_without_rights_to_accounts_their_ids_are_shown(signed_in: Neo, of_accounts: FakeServer) -> None:
    def refuse(request: Any) -> Any:
        raise contract.permission_denied("iam.serviceAccounts.get", "tenant-e00bank")

    of_accounts.serve("nebius.iam.v1.ServiceAccountService/Get", refuse)
    assert set(by_account(signed_in)) == {ANN, CI, GONE, "not known"}


def test_two_accounts_of_one_name_are_not_added_up(signed_in: Neo, of_accounts: FakeServer) -> None:
    found = contract.method("nebius.iam.v1.ServiceAccountService/Get").output()
    found.metadata.name = "ci"
    of_accounts.serve("nebius.iam.v1.ServiceAccountService/Get", found)
    assert set(by_account(signed_in)) == {ANN, CI, GONE, "not known"}


def test_the_report_by_product_and_by_project(signed_in: Neo, cloud: FakeServer) -> None:
    lines = [
        line("bank", "2026-11-01", "0.1") | {"product": "Slurm", "parent_id": "project-e00a"},
        line("lab", "2026-11-02", "0.2") | {"product": "Slurm", "parent_id": "project-e00b"},
    ]
    serve_report(cloud, lines, "0.3")
    for by, groups in (("product", ["Slurm"]), ("project", ["project-e00a", "project-e00b"])):
        rows = signed_in("billing", "report", "--by", by).out.split("\n\n")[0].splitlines()
        assert [row.split()[0] for row in rows] == [by.upper(), *groups]
