"""What a caller may do with fine-tuning jobs: verbs, and the permission each needs."""

from typing import Any

from neocloud.core.kind import Kind
from neocloud.core.service import Method
from neocloud.services.tuning.api import control, course
from neocloud.services.tuning.resources import JOB, JOB_ID_PREFIX, WORKING, State
from neocloud.services.tuning.rules import FineTuningJobRules

_JOBS = control.SERVICE


def _id(request: Any) -> str:
    return request.id


JOBS = Kind(
    message=JOB,
    rpc=_JOBS,
    id_prefix=JOB_ID_PREFIX,
    permission="tuning.fineTuningJobs",
    parent_kinds=("nebius.iam.v1.Container",),
    verbs=frozenset({"Create", "Get", "GetByName", "List", "Delete"}),
    rules=FineTuningJobRules(),
    initial_state=State.VALIDATING_FILES,
    deleting_state=State.DELETING,
    stopped_state=State.QUEUED,
    working_states=WORKING,
    is_reconciled=True,
)
KINDS = (JOBS,)

METHODS = (
    Method(f"{_JOBS}/Cancel", control.cancel, "tuning.fineTuningJobs.cancel", _id, is_change=True),
    Method(f"{_JOBS}/Pause", control.pause, "tuning.fineTuningJobs.pause", _id, is_change=True),
    Method(f"{_JOBS}/Resume", control.resume, "tuning.fineTuningJobs.resume", _id, is_change=True),
    Method(f"{_JOBS}/ListEvents", course.list_events, "tuning.fineTuningJobs.get", _id),
    Method(f"{_JOBS}/ListCheckpoints", course.list_checkpoints, "tuning.fineTuningJobs.get", _id),
    Method(f"{_JOBS}/ReadLog", course.read_log, "tuning.fineTuningJobs.get", _id),
)
