"""The log of what runs in a resource, whatever its kind: `neo logs NAME --workload`."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from shlex import quote

import typer

from neocloud.cli.resources.lookup import (
    AI_JOBS,
    CLUSTERS,
    DEPLOYMENTS,
    ENDPOINTS,
    INSTANCES,
    NOT_OFFERED,
    TUNING_JOBS,
    ProjectClient,
    connect_to_project,
    find_in,
    is_id_of,
    not_found,
)
from neocloud.client.errors import ClientError


@dataclass(frozen=True)
class _Log:
    kind: str
    command: str
    """The command of this kind alone."""
    function: str
    """`module:function` of that command, below `neocloud.cli.commands`; imported when it is needed."""
    instead_of_follow: str = ""
    """What to do where the API has no way to follow the log; "" if it has."""

    @property
    def one(self) -> str:
        """ "an endpoint"."""
        return f"{'an' if self.kind[0] in 'aeio' else 'a'} {self.kind}"


_LOGS: Mapping[str, _Log] = {
    INSTANCES: _Log("machine", "neo compute instance serial-log", "instance:serial_log"),
    CLUSTERS: _Log("Slurm cluster", "neo slurm job logs", "slurm.job:logs"),
    DEPLOYMENTS: _Log("deployment", "neo deployment logs", "inference.deployment:logs", "Leave out --follow"),
    TUNING_JOBS: _Log(
        "fine-tuning job",
        "neo tuning job logs",
        "tuning.job:logs",
        "Follow its events: neo tuning job events {name} --follow",
    ),
    ENDPOINTS: _Log("endpoint", "neo ai endpoint logs", "ai_workloads:endpoint_logs"),
    AI_JOBS: _Log("job", "neo ai job logs", "ai_workloads:job_logs"),
}


def is_workload(resource_id: str) -> bool:
    """Return whether something runs in the resource of this id, which has a log of its own."""
    return any(is_id_of(service, resource_id) for service in _LOGS)


def print_workload_log(context: typer.Context, name: str, project: str, *, follow: bool) -> None:
    """Find the resource of this name or id and print the log of what runs in it.

    A fine-tuning job is also found by its resulting model.
    """
    log = _log_of(connect_to_project(context, project), name)
    if follow and log.instead_of_follow:
        raise ClientError(
            "INVALID_ARGUMENT",
            f"The log of {log.one} cannot be followed",
            log.instead_of_follow.format(name=quote(name)),
        )
    module, function = log.function.split(":")
    options = {} if log.instead_of_follow else {"follow": follow}
    command = getattr(importlib.import_module(f"neocloud.cli.commands.{module}"), function)
    command(context, name, project=project, **options)


def _log_of(cloud: ProjectClient, name: str) -> _Log:
    found, refusals = find_in(cloud, tuple(_LOGS), name)
    if len(found) > 1:
        logs = [_LOGS[service] for service in found]
        raise ClientError(
            "FAILED_PRECONDITION",
            f"Several resources are named {name!r}: {', '.join(log.one for log in logs)}",
            f"Choose one: {', or '.join(f'{log.command} {quote(name)}' for log in logs)}",
        )
    if found:
        return _LOGS[next(iter(found))]
    if _is_model_of_job(cloud, name):
        return _LOGS[TUNING_JOBS]
    *kinds, last = [log.kind for log in _LOGS.values()]
    message = f"There is no {', '.join(kinds)} or {last} {name!r}"
    raise not_found(cloud, _LOGS, name, message, refusals)


def _is_model_of_job(cloud: ProjectClient, name: str) -> bool:
    try:
        return any(job.status.fine_tuned_model == name for job in cloud.list_all(TUNING_JOBS))
    except ClientError as error:
        if error.code not in NOT_OFFERED:
            raise
        return False
