"""The log of what runs in a resource, whatever its kind: `neo logs NAME`."""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from shlex import quote

from neocloud.cli.resources.lookup import (
    AI_JOBS,
    CLUSTERS,
    DEPLOYMENTS,
    ENDPOINTS,
    INSTANCES,
    NOT_OFFERED,
    TUNING_JOBS,
    ProjectClient,
    find_in,
    is_id_of,
    not_found,
)
from neocloud.cli.resources.noun import kebab
from neocloud.cli.resources.search import find
from neocloud.client.errors import ClientError
from neocloud.core import contract


@dataclass(frozen=True)
class WorkloadLog:
    kind: str
    command: str
    """The command of this kind alone."""
    function: str
    """`module:function` of that command, below `neocloud.cli.commands`; imported when it is needed."""

    @property
    def one(self) -> str:
        """ "an endpoint"."""
        return f"{'an' if self.kind[0] in 'aeio' else 'a'} {self.kind}"


LOGS: Mapping[str, WorkloadLog] = {
    INSTANCES: WorkloadLog("machine", "neo compute instance serial-log", "instance:serial_log"),
    CLUSTERS: WorkloadLog("Slurm cluster", "neo slurm job logs", "slurm.job:logs"),
    DEPLOYMENTS: WorkloadLog("deployment", "neo deployment logs", "inference.deployment:logs"),
    TUNING_JOBS: WorkloadLog("fine-tuning job", "neo tuning job logs", "tuning.job:logs"),
    ENDPOINTS: WorkloadLog("endpoint", "neo ai endpoint logs", "ai_workloads:endpoint_logs"),
    AI_JOBS: WorkloadLog("job", "neo ai job logs", "ai_workloads:job_logs"),
}
"""Workloads that have a log of their own, by service."""


def is_workload(resource_id: str) -> bool:
    """Return whether something runs in the resource of this id, which has a log of its own."""
    return any(is_id_of(service, resource_id) for service in LOGS)


def workload_log(cloud: ProjectClient, name: str) -> tuple[WorkloadLog | None, Sequence[ClientError]]:
    """Return how to read the log of the workload of this name or id, or None; and the refusals of kinds that
    the caller may not read. A fine-tuning job is also found by its resulting model.

    Raises ClientError if several workloads have the name.
    """
    found, refusals = find_in(cloud, tuple(LOGS), name)
    if len(found) > 1:
        logs = [LOGS[service] for service in found]
        raise ClientError(
            "FAILED_PRECONDITION",
            f"Several resources are named {name!r}: {', '.join(log.one for log in logs)}",
            f"Choose one: {', or '.join(f'{log.command} {quote(name)}' for log in logs)}",
        )
    if found:
        return LOGS[next(iter(found))], refusals
    return (LOGS[TUNING_JOBS] if _is_model_of_job(cloud, name) else None), refusals


def print_workload_log(cloud: ProjectClient, log: WorkloadLog, name: str, *, follow: bool) -> None:
    module, function = log.function.split(":")
    command = getattr(importlib.import_module(f"neocloud.cli.commands.{module}"), function)
    command(cloud, name, follow=follow)


def kind_without_log(cloud: ProjectClient, name: str) -> str:
    """Return the kind of a resource of this name or id that is no workload: "disk"; "" if there is none."""
    parents = [each for each in (cloud.project, cloud.profile.tenant_id) if each]
    searches = [{"ids": [name]}] if contract.is_id(name) else []
    for conditions in (*searches, {"name": name, "parent_ids": parents}):
        page = find(cloud.client, **conditions)
        if page is not None and page.items:
            return kebab(page.items[0].kind.rpartition(".")[2]).replace("-", " ")
    return ""


def no_workload(cloud: ProjectClient, name: str, refusals: Sequence[ClientError]) -> ClientError:
    """Return the error for a name that no workload has."""
    *kinds, last = [log.kind for log in LOGS.values()]
    return not_found(cloud, LOGS, name, f"There is no {', '.join(kinds)} or {last} {name!r}", refusals)


def _is_model_of_job(cloud: ProjectClient, name: str) -> bool:
    try:
        return any(job.status.fine_tuned_model == name for job in cloud.list_all(TUNING_JOBS))
    except ClientError as error:
        if error.code not in NOT_OFFERED:
            raise
        return False
