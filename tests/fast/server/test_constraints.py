"""Every constraint of every served request, broken one at a time: the answer names exactly the field.

The cases come from the contract's annotations and the server's own table of methods; none is written by hand.
"""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from neocloud.core import contract
from tests.fast.server.walk.asking import request
from tests.fast.server.walk.cloud import TABLE, Answer, WalkedCloud, walked_cloud
from tests.fast.server.walk.constraints import Case, cases, expressions

pytestmark = pytest.mark.slow


@pytest.fixture
async def cloud(tmp_path: Path) -> AsyncIterator[WalkedCloud]:
    async with walked_cloud(tmp_path) as ready:
        yield ready


def named_fields(answer: Answer) -> list[str]:
    status = contract.message("google.rpc.Status").FromString(answer.details)
    errors = [contract.unpack(each) for each in status.details]
    return [violation.field for error in errors for violation in error.bad_request.violations]


KEPT_BY_AN_UPDATE = {"metadata", "metadata.parent_id", "spec"}
"""An Update that leaves these out leaves them as they are."""
LISTS_OF_IDS = {"spec.group_ids"}
"""Whether the caller may use what a request names is found out before the request is checked."""
CHECKED_BY_THEIR_HANDLER = {
    "nebius.billing.v1alpha1.CalculatorService/Estimate",
    "nebius.billing.v1alpha1.CalculatorService/EstimateBatch",
    "nebius.quotas.v1.QuotaAllowanceService/Update",
    "neocloud.inference.v1.GatewayService/Admit",
    "neocloud.inference.v1.GatewayService/ListRoutes",
    "neocloud.storage.v1.ObjectGatewayService/ListBuckets",
    "neocloud.storage.v1.ObjectGatewayService/ListTransfers",
    "neocloud.storage.v1.ObjectGatewayService/ReportTransfers",
    "neocloud.storage.v1.ObjectGatewayService/ListInventories",
    "neocloud.storage.v1.ObjectGatewayService/ReportInventories",
    "neocloud.storage.v1.ObjectGatewayService/ReportObjectEvents",
}
"""Requests that need not be complete: a price can be asked for a part, an update of a quota says only what
changes, and a caller without the gateway's key learns nothing of what it may ask.
"""


def applies(path: str, case: Case) -> bool:
    is_kept = case.rule == "required" and path.endswith("/Update") and case.path in KEPT_BY_AN_UPDATE
    is_looked_up = path.startswith("neocloud.slurm.v1.") and case.path in LISTS_OF_IDS
    return not (is_kept or is_looked_up) and path not in CHECKED_BY_THEIR_HANDLER


async def complaint(cloud: WalkedCloud, path: str, case: Case) -> Any:
    """Return the defect of the server's answer to the broken request; None for a correct one."""
    message = case.broken(request(path, TABLE, cloud.victim))
    is_taken_away = path.endswith("/Update") and case.rule == "required"
    headers = {"x-resetmask": case.mask} if is_taken_away else {}
    answer = await cloud.send(path, message, cloud.tokens["victim"], **headers)
    fields = named_fields(answer)
    if answer.code == "INVALID_ARGUMENT" and case.path in fields:
        return None
    return path, case.rule, case.path, answer.code, fields or answer.message


async def test_a_broken_constraint_is_refused_by_the_name_of_its_field(cloud: WalkedCloud) -> None:
    found = [(path, case) for path in cloud.paths for case in cases(contract.method(path).input)]
    complaints = [await complaint(cloud, path, case) for path, case in found if applies(path, case)]
    assert not [each for each in complaints if each is not None]
    assert len(found) > 300, "the contract has lost its constraints"


async def test_a_broken_expression_is_refused_by_the_name_of_its_field(cloud: WalkedCloud) -> None:
    found = [(path, case) for path in cloud.paths for case in expressions(contract.method(path).input)]
    complaints = [await complaint(cloud, path, case) for path, case in found if applies(path, case)]
    assert not [each for each in complaints if each is not None]
