"""A job costs what its pod is, while it runs."""

from datetime import UTC, datetime, timedelta

import pytest
from neocloud.messages.neocloud.tuning.v1 import FineTuningJobSpec

from neocloud.core.store.protocol import HistoryEntry
from neocloud.services.tuning import FineTuningJobMeter
from neocloud.services.tuning.types import JOB, JobState

pytestmark = pytest.mark.slow

START = datetime(2026, 11, 1, tzinfo=UTC)


def entry(seconds: int, state: JobState) -> HistoryEntry:
    spec = FineTuningJobSpec(platform="cpu-local", preset="2vcpu-8gb").SerializeToString()
    fields = dict.fromkeys(HistoryEntry.__dataclass_fields__, "")
    given = {
        "resource_id": "finetuningjob-e00one", "kind": JOB, "parent_id": "project-e00one", "state": state,
        "spec": spec, "at": START + timedelta(seconds=seconds), "labels": {}, "is_deleted": False,
    }  # fmt: skip
    return HistoryEntry(**{**fields, **given})


def test_only_what_ran_is_charged() -> None:
    history = [
        entry(0, JobState.VALIDATING_FILES),
        entry(10, JobState.RUNNING),
        entry(70, JobState.PAUSED),
        entry(100, JobState.RUNNING),
        entry(130, JobState.SUCCEEDED),
    ]
    records = list(FineTuningJobMeter()(history, START, START + timedelta(hours=1)))
    sums: dict[str, int] = {}
    for record in records:
        sums[record.sku] = sums.get(record.sku, 0) + record.unit_seconds
    assert sums == {"cpu-local.vcpu": 2 * 90, "cpu-local.ram": 8 * 90}
