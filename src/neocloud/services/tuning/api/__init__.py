"""The methods of fine-tuning jobs, and the permission each needs."""

from typing import Protocol

from neocloud.core.kind import Kind
from neocloud.core.service import Method
from neocloud.services.tuning.api import lifecycle, progress
from neocloud.services.tuning.rules import FineTuningJobRules
from neocloud.services.tuning.types import JOB, JOB_ID_PREFIX, WORKING, State

_JOBS = lifecycle.SERVICE


class _RequestWithId(Protocol):
    id: str


def _id(request: _RequestWithId) -> str:
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
    Method(f"{_JOBS}/Cancel", lifecycle.cancel, "tuning.fineTuningJobs.cancel", _id, is_change=True),
    Method(f"{_JOBS}/Pause", lifecycle.pause, "tuning.fineTuningJobs.pause", _id, is_change=True),
    Method(f"{_JOBS}/Resume", lifecycle.resume, "tuning.fineTuningJobs.resume", _id, is_change=True),
    Method(f"{_JOBS}/ListEvents", progress.list_events, "tuning.fineTuningJobs.get", _id),
    Method(f"{_JOBS}/ListCheckpoints", progress.list_checkpoints, "tuning.fineTuningJobs.get", _id),
    Method(f"{_JOBS}/ReadLog", progress.read_log, "tuning.fineTuningJobs.get", _id),
)
