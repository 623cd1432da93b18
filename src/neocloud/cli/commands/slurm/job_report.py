"""`neo slurm job report`: what a job got, what it used of that, and what its interruptions cost.

It adds itself to the commands of `job`, whose `app` is the whole group then.
"""

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from neocloud.cli.commands.slurm.job import app
from neocloud.cli.commands.slurm.job_lookup import JOBS, NewestJobArgument, find_job, known_job
from neocloud.cli.output import (
    Format,
    OutputOption,
    counted,
    fields_table,
    print_view,
    say,
    show,
    size_text,
    table,
)
from neocloud.cli.progress import duration
from neocloud.cli.resources.lookup import CLUSTERS, Cloud, ClusterArgument
from neocloud.core import contract

if TYPE_CHECKING:
    from google.protobuf.timestamp_pb2 import Timestamp

    from neocloud.messages.neocloud.slurm.v1 import JobNodeEvent, JobReport, JobRun

__all__ = ["app", "report"]


@app.command()
def report(
    cloud: Cloud, cluster: ClusterArgument, job: NewestJobArgument = "", output: OutputOption = Format.TABLE
) -> None:
    """Show what a job got and used: processors, memory, files, GPUs, energy, and runs that were cut short.

    The numbers are those of Slurm's accounting. It knows what a step used when the step has ended, and
    samples memory every 2 seconds. Figures of GPUs are from the store of metrics (neo up --metrics) and the
    agents of nodes (--auto-repair). TFLOP/s are estimated: the share of cycles in which tensor cores work,
    times the dense BF16 peak of the model. Node events are those of the job's nodes in its time.

    Examples:

      neo slurm job report lab 7
      neo slurm job report lab 7 --output json
    """
    cluster_id = cloud.find(CLUSTERS, cluster).metadata.id
    number = int(job) if job.isdigit() else find_job(cloud, cluster_id, cluster, job).id
    with known_job(cluster, number):
        found: JobReport = cloud.client.call(f"{JOBS}/Report", {"cluster_id": cluster_id, "job_id": number})
    show(output, contract.to_document(found), fields_table(_rows(found)))
    if output is Format.TABLE and found.runs:
        say()
        print_view(_steps(found.runs[-1]))
        if found.runs[-1].more_steps:
            say(f"{counted(found.runs[-1].more_steps, 'more step')}.")
    if output is Format.TABLE and found.node_events:
        say()
        print_view(_events(found.node_events))


def _rows(found: "JobReport") -> Iterator[tuple[str, str]]:
    job, runs = found.job, found.runs
    yield "Job", f"{job.id} {job.name}, {job.user}"
    yield "State", job.state
    if not runs:
        yield "Runs", "none: it had no nodes yet, or accounting has no record of it"
        return
    yield "Waited", duration(_between(job.submitted_at, runs[0].started_at))
    for run in runs[:-1]:
        yield "Cut short", f"{run.state} on {run.nodes} after {_length(run)}"
    if len(runs) > 1:
        lost = sum(_between(run.started_at, run.finished_at) for run in runs[:-1])
        gaps = sum(_between(a.finished_at, b.started_at) for a, b in zip(runs, runs[1:], strict=False))
        yield "  in these runs", f"{duration(lost)}, less what its checkpoints kept"
        yield "  between runs", duration(gaps)
    yield from _of_last(runs[-1])
    for why in found.not_known:
        yield "Not known", why


def _of_last(last: "JobRun") -> Iterator[tuple[str, str]]:
    got = (
        f"{counted(last.cpus, 'CPU')}, {size_text(last.memory_bytes)} of memory, {counted(last.gpus, 'GPU')}"
    )
    yield "Got", f"{got} on {last.nodes}"
    yield "Ran", _length(last)
    yield from _gpus(last)
    if not last.HasField("finished_at"):
        return
    available = _between(last.started_at, last.finished_at) * last.cpus
    used = sum(step.cpu_seconds for step in last.steps)
    if available:
        yield "Processor time", f"{duration(used)}, {100 * used / available:.0f}% of what it had"
    peak = max((step.peak_memory_bytes for step in last.steps), default=0)
    if last.memory_bytes and peak:  # a step of less than two seconds may have no sample
        yield "Memory", f"{size_text(peak)} at most, {100 * peak / last.memory_bytes:.0f}% of what it had"


def _gpus(run: "JobRun") -> Iterator[tuple[str, str]]:
    if not run.HasField("gpu_use"):
        return
    use = run.gpu_use
    of = "" if use.coverage > 0.99 else f", in {100 * use.coverage:.0f}% of the time"
    note = f"{of}, simulated" if use.is_simulated else of
    if use.HasField("utilisation_percent"):
        yield "GPU utilisation", f"{use.utilisation_percent:.0f}% on average{note}"
    if use.HasField("tensor_active"):
        yield "Tensor cores", f"active in {100 * use.tensor_active:.0f}% of cycles{note}"
    if use.HasField("estimated_tflops"):
        share = 100 * use.estimated_tflops / use.peak_tflops
        peak = f"{share:.0f}% of the dense BF16 peak of {use.peak_tflops:,.0f}"
        yield "TFLOP/s", f"{use.estimated_tflops:,.0f} estimated, {peak}{note}"
    if use.HasField("energy_joules"):
        yield "GPU energy", f"{use.energy_joules / 3.6e6:,.3g} kWh{note}"
    for why in use.not_known:
        yield "Not known", why


def _events(events: "Sequence[JobNodeEvent]") -> Any:
    rows = ((contract.to_datetime(each.at), each.node, each.text) for each in events)
    return table(["AT, UTC", "NODE", "EVENT"], ((f"{at:%Y-%m-%d %H:%M:%S}", *more) for at, *more in rows))


def _steps(run: "JobRun") -> Any:
    headers = ["STEP", "TIME", "CPU TIME", "MEMORY OF A TASK", "ON", "READ", "WRITTEN"]
    rows = (
        (
            step.name,
            duration(_between(step.started_at, step.finished_at)) if step.HasField("finished_at") else "runs",
            duration(step.cpu_seconds),
            size_text(step.peak_task_memory_bytes),
            step.peak_task_node,
            size_text(step.read_bytes),
            size_text(step.written_bytes),
        )
        for step in run.steps
    )
    return table(headers, rows, right=["TIME", "CPU TIME", "MEMORY OF A TASK", "READ", "WRITTEN"])


def _length(run: "JobRun") -> str:
    if not run.HasField("finished_at"):
        return "still running"
    return duration(_between(run.started_at, run.finished_at))


def _between(start: "Timestamp", end: "Timestamp") -> float:
    """Return the seconds between two timestamps, 0 where the clock went back."""
    span = contract.to_datetime(end) - contract.to_datetime(start)
    return max(timedelta(), span).total_seconds()
