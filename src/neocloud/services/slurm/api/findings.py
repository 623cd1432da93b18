# pyright: strict
"""Findings of a readiness check: the thresholds, and what the reports of probes mean. Pure.

Probes run programs of the tenant, which may print anything: a report is read with bounds and type checks.
Verdicts are pass, fail, not_run and not_enforced; a check that could not run is never called a pass, nor is a
limit that nothing enforces.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from neocloud.core.json_values import as_list, is_list, is_object
from neocloud.services.compute.public import Preset
from neocloud.services.slurm.slurm_records import SlurmNode

PASS, FAIL, NOT_RUN, NOT_ENFORCED = "pass", "fail", "not_run", "not_enforced"

MEMORY_TOLERANCE = 0.95
"""A node may miss 5 % of its preset's memory to the kernel and the daemons."""
WRITE_MIB_PER_SECOND = 50
READ_MIB_PER_SECOND = 100
"""Of the shared root, one node alone. Chosen by us: below this, loading a dataset is what a job waits for."""
CLOCK_SKEW_SECONDS = 0.5
ALL_REDUCE_MIB_PER_SECOND = {"gloo": 50, "nccl": 5_000}
"""Bus bandwidth at 128 MiB, by backend. Chosen by us; the published NCCL figure is 488 GB/s (NET-02)."""
DRAIN_PREFIX = "[neocloud] readiness: "
"""Reasons of nodes that a check has drained start with it."""

MOST = 10**15
"""Largest figure that is accepted, of any unit."""
MAX_GPUS = 64
"""GPUs of one node; the largest preset has 8."""
MAX_ROWS = 64
"""Sizes of one measurement; the probe has 4."""
MAX_NODES = 1024
"""Nodes of a job's report."""
MAX_NAME_CHARS = 100
"""Length of a GPU's name."""
MAX_LINE_CHARS = 300
"""Length of a program's last line in a message."""


class BadReport(Exception):
    """The output of a probe is not a report."""


@dataclass(frozen=True)
class NodeFinding:
    node: str
    check: str
    verdict: str
    measured: str = ""
    threshold: str = ""
    message: str = ""


@dataclass(frozen=True)
class NodeReport:
    """The figures of one node."""

    cpus: float
    memory_mib: float
    write_mib_per_second: float
    read_mib_per_second: float
    time: float
    """The node's clock, in seconds since 1970."""
    tmp_device: float
    """The file system of /tmp, as programs outside jobs see it."""
    shm_device: float
    gpus: Sequence[str] | None = None
    """Names of the GPUs; None without a driver."""


@dataclass(frozen=True)
class NodeFigures:
    """The figures of one node that are measured beside running jobs."""

    cpus: float
    memory_mib: float
    gpus: Sequence[str] | None = None
    """Names of the GPUs; None without a driver."""


@dataclass(frozen=True)
class JobReport:
    """The findings of a job with one CPU on a node."""

    node: str
    cpus: float
    """CPUs that its programs use."""
    reachable_cpus: float
    """CPUs that they use when they ask the kernel for all."""
    memory_bytes: float
    """The kernel's limit of the job's own control group; MOST for none."""
    tmp_device: float
    shm_device: float
    open_files: float
    """Soft limits; MOST for none."""
    locked_bytes: float
    processes: float


@dataclass(frozen=True)
class AllReduceRow:
    """The measurement with one size."""

    size_mib: float
    bus_mib_per_second: float
    milliseconds: float
    is_right: bool
    """Whether the sum was right."""


@dataclass(frozen=True)
class AllReduceReport:
    backend: str
    ranks: float
    rows: Sequence[AllReduceRow]


def slurm_finding(name: str, node: SlurmNode | None) -> NodeFinding:
    if node is None:
        return NodeFinding(name, "slurm", FAIL, "missing", "registered", "The node is not known to Slurm.")
    is_out = "DRAIN" in node.states and not node.reason.startswith(DRAIN_PREFIX)
    verdict = PASS if node.is_available and not is_out else FAIL
    return NodeFinding(name, "slurm", verdict, node.state_text, "registered, not drained", node.reason)


def probe_findings(name: str, expected: Preset, report: NodeReport, skew: float) -> list[NodeFinding]:
    """Compare a node's figures with its preset; `skew` is its clock's difference in seconds."""
    write, read = report.write_mib_per_second, report.read_mib_per_second
    return [
        *figure_findings(name, expected, report),
        _at_least(name, "shared root write", write, WRITE_MIB_PER_SECOND, "MiB/s"),
        _at_least(name, "shared root read", read, READ_MIB_PER_SECOND, "MiB/s"),
        NodeFinding(
            name,
            "clock skew",
            PASS if skew <= CLOCK_SKEW_SECONDS else FAIL,
            f"{skew:.3f} s",
            f"<= {CLOCK_SKEW_SECONDS} s",
        ),
    ]


def figure_findings(name: str, expected: Preset, report: NodeFigures | NodeReport) -> list[NodeFinding]:
    """Compare a node's processors, memory and GPUs with its preset."""
    least_mib = int(expected.memory_gib * 1024 * MEMORY_TOLERANCE)
    return [
        _at_least(name, "cpu", report.cpus, expected.vcpu, "vCPU"),
        _at_least(name, "memory", report.memory_mib, least_mib, "MiB"),
        gpu_finding(name, expected, report.gpus),
    ]


def gpu_finding(name: str, expected: Preset, found: Sequence[str] | None) -> NodeFinding:
    if not expected.gpus and not found:
        return NodeFinding(name, "gpu", NOT_RUN, "none", "none in preset", "The preset has no GPU.")
    measured = "no driver" if found is None else f"{len(found)} x {found[0]}" if found else "0"
    verdict = PASS if len(found or ()) == expected.gpus else FAIL
    return NodeFinding(name, "gpu", verdict, measured, f"{expected.gpus} x {expected.gpu_type}")


def all_reduce_findings(report: AllReduceReport) -> list[NodeFinding]:
    """Judge the sums of all sizes, and the speed of the largest alone: small ones measure latency."""
    least = ALL_REDUCE_MIB_PER_SECOND[report.backend]
    largest = max(row.size_mib for row in report.rows)
    findings: list[NodeFinding] = []
    for row in report.rows:
        is_judged = row.size_mib == largest
        fast_enough = not is_judged or row.bus_mib_per_second >= least
        findings.append(
            NodeFinding(
                "",
                f"all-reduce {row.size_mib} MiB",
                PASS if row.is_right and fast_enough else FAIL,
                f"{row.bus_mib_per_second:.0f} MiB/s bus ({row.milliseconds:.1f} ms)",
                f">= {least} MiB/s" if is_judged else "right sum",
                f"{report.ranks} ranks, {report.backend}" if row.is_right else "The sum was wrong.",
            )
        )
    return findings


def _at_least(node: str, check: str, measured: float, least: float, unit: str) -> NodeFinding:
    return NodeFinding(
        node, check, PASS if measured >= least else FAIL, f"{measured:.6g} {unit}", f">= {least:g} {unit}"
    )


def node_figures(output: bytes) -> NodeFigures:
    """Read the figures of one node that has measured no speeds. Raises BadReport. The engine bounds the
    output."""
    found = _object(output)
    return NodeFigures(_number(found, "cpus"), _number(found, "memory_mib"), _gpu_names(found.get("gpus")))


def node_report(output: bytes) -> NodeReport:
    """Read the figures of one node. Raises BadReport. The engine bounds the output."""
    found = _object(output)
    return NodeReport(
        gpus=_gpu_names(found.get("gpus")),
        cpus=_number(found, "cpus"),
        memory_mib=_number(found, "memory_mib"),
        write_mib_per_second=_number(found, "write_mib_per_second"),
        read_mib_per_second=_number(found, "read_mib_per_second"),
        time=_number(found, "time"),
        tmp_device=_number(found, "tmp_device"),
        shm_device=_number(found, "shm_device"),
    )


def job_reports(output: bytes) -> list[JobReport]:
    """Read what a job found on each of its nodes, one line each. Raises BadReport."""
    reports: list[JobReport] = []
    for line in output.splitlines()[:MAX_NODES]:
        found = _object(line)
        node = found.get("node")
        if not isinstance(node, str) or not _is_name(node):
            raise BadReport('"node" is no name')
        reports.append(
            JobReport(
                node=node,
                cpus=_number(found, "cpus"),
                reachable_cpus=_number(found, "reachable_cpus"),
                memory_bytes=_limit(found, "memory_bytes"),
                tmp_device=_number(found, "tmp_device"),
                shm_device=_number(found, "shm_device"),
                open_files=_limit(found, "open_files"),
                locked_bytes=_limit(found, "locked_bytes"),
                processes=_limit(found, "processes"),
            )
        )
    if not reports:
        raise BadReport("it is empty")
    return reports


def all_reduce_report(output: bytes) -> AllReduceReport:
    """Read the figures of a measurement between nodes. Raises BadReport."""
    found = _object(output)
    backend, rows = found.get("backend"), found.get("results")
    if not isinstance(backend, str) or backend not in ALL_REDUCE_MIB_PER_SECOND:
        raise BadReport(f'"backend" is none of {", ".join(ALL_REDUCE_MIB_PER_SECOND)}')
    if not (is_list(rows) and 0 < len(rows) <= MAX_ROWS):
        raise BadReport('"results" is not a list of measurements')
    return AllReduceReport(backend, _number(found, "ranks"), tuple(map(_row, rows)))


def last_line(stderr: bytes, exit_code: int) -> str:
    """Return the last line that a failed program printed, shortened, without control characters."""
    lines = stderr.decode(errors="replace").strip().splitlines()
    shown = (
        letter if letter.isprintable() else "?" for letter in (lines[-1] if lines else "")[:MAX_LINE_CHARS]
    )
    return "".join(shown) or f"exit code {exit_code}"


def _row(row: object) -> AllReduceRow:
    is_right = row.get("right") if is_object(row) else None
    if not is_object(row) or not isinstance(is_right, bool):
        raise BadReport('a measurement does not say whether its sum was "right"')
    return AllReduceRow(
        size_mib=_number(row, "size_mib"),
        bus_mib_per_second=_number(row, "bus_mib_per_second"),
        milliseconds=_number(row, "milliseconds"),
        is_right=is_right,
    )


def _object(output: bytes) -> Mapping[str, object]:
    try:
        found = json.loads(output)
    except (ValueError, RecursionError):
        raise BadReport("it is no JSON") from None
    if not is_object(found):
        raise BadReport("it is no JSON object")
    return found


def _number(found: Mapping[str, object], name: str) -> int | float:
    value = found.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MOST:  # nor NaN
        raise BadReport(f'"{name}" is not a number from 0 to {MOST:,}')
    return value


def _limit(found: Mapping[str, object], name: str) -> int | float:
    """Read a limit of resources; none is -1, and counts as the largest number."""
    return float(MOST) if found.get(name) == -1 else _number(found, name)


def _gpu_names(value: object) -> Sequence[str] | None:
    if value is None:
        return None
    names = [each for each in as_list(value) if _is_name(each)]
    if not (is_list(value) and len(value) <= MAX_GPUS and names == value):
        raise BadReport('"gpus" is not a list of names')
    return names


def _is_name(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and len(value) <= MAX_NAME_CHARS and value.isprintable()
