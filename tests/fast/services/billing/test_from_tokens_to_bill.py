"""The application hands the gateway's ledger to billing and budgets: the whole way over HTTP.
BILL-03, AIS-14."""

from pathlib import Path
from typing import Any

import httpx

from neocloud.core.clock import SystemClock
from neocloud.model_gateway.metering.ledger import open_ledger
from neocloud.model_gateway.metering.ledger_tables import RequestEnd, Reservation, ledger_file
from neocloud.testing.waiting import until
from tests.fast.services.billing.conftest import Bank


async def ask(bank: Bank, method: str, **request: Any) -> Any:
    token = await bank.sdk.get_token(timeout=60)
    address = f"http://{bank.running.server.addresses.http}"
    async with httpx.AsyncClient(base_url=address, trust_env=False, timeout=60) as http:
        headers = {"authorization": f"Bearer {token.token}"}
        answer = await http.post(f"/neocloud.inference.v1.{method}", json=request, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_tokens_in_the_ledger_are_on_the_bill_and_in_the_budget(bank: Bank, tmp_path: Path) -> None:
    ledger = open_ledger(ledger_file(tmp_path), SystemClock())
    now = int(SystemClock().now().timestamp() * 1000)
    prices = (13 * 10**6, 13 * 10**6, 40 * 10**6)
    ids = (
        bank.running.first.tenant_id,
        bank.project_id,
        "serviceaccount-e00a",
        "deployment",
        "llama-3.1-70b",
    )
    ledger.write(Reservation("chat", *ids, *prices, 6000, 2000, now))
    ledger.write(RequestEnd("chat", now, 6000, 0, 2000, "ok", 0))
    await ledger.flush()
    ledger.close()

    # a bill ends with the last whole second
    report = await until(
        lambda: bank.bill("GetReport"), holds=lambda report: report.get("lines"), poll_seconds=0.1
    )
    lines = {line["sku"]: (line["cost"], line["parentId"]) for line in report["lines"]}
    assert lines == {
        "tokens.llama-3.1-70b.input": ("0.000780", bank.project_id),
        "tokens.llama-3.1-70b.output": ("0.000800", bank.project_id),
    }
    assert report["totalCost"] == "0.001580"
    assert [item["count"] for item in (await bank.bill("ListUsage"))["items"]] == ["6000", "2000"]

    metadata = {"parentId": bank.project_id, "name": "month"}
    await ask(bank, "BudgetService/Create", metadata=metadata, spec={"monthlyLimit": "5"})
    found = await ask(bank, "BudgetService/GetByName", **metadata)
    assert found["status"]["spent"] == "0.00158"
