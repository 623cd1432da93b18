"""Findings of a readiness check: the thresholds, and what the reports of probes mean. Pure.

Probes run programs of the tenant, which may print anything: a report is read with bounds and type checks.
Verdicts are pass, fail, not_run and not_enforced; a check that could not run is never called a pass, nor is a
limit that nothing enforces.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, TypeVar

import msgspec

from neocloud.services.compute.public import Preset
from neocloud.services.slurm.slurm_records import SlurmNode

PASS, FAIL, NOT_RUN, NOT_ENFORCED = "pass", "fail", "not_run", "not_enforced"

MEMORY_TOLERANCE = 0.95
"""A node may miss 5 % of its preset's memory to the kernel and the daemons."""
WRITE_MIB_PER_SECOND = 50
READ_MIB_PER_SECOND = 100
"""Speed of the shared root, one node alone. Chosen by us: below this, loading a dataset is what a job waits
for.
"""
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


_MEASURE = msgspec.Meta(ge=0, le=MOST)
Figure = Annotated[int, _MEASURE] | Annotated[float, _MEASURE]
_LIMIT = msgspec.Meta(ge=-1, le=MOST)
Limit = Annotated[int, _LIMIT] | Annotated[float, _LIMIT]
"""A limit of resources; -1 for none, which is read as MOST."""
Name = Annotated[str, msgspec.Meta(max_length=MAX_NAME_CHARS)]
GpuNames = Annotated[tuple[Name, ...], msgspec.Meta(max_length=MAX_GPUS)] | None
"""Names of the GPUs; None without a driver."""
_Report = TypeVar("_Report")


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

    cpus: Figure
    memory_mib: Figure
    write_mib_per_second: Figure
    read_mib_per_second: Figure
    time: Figure
    """The node's clock, in seconds since 1970."""
    tmp_device: Figure
    """The file system of /tmp, as programs outside jobs see it."""
    shm_device: Figure
    gpus: GpuNames = None

    def __post_init__(self) -> None:
        _check_names(self.gpus or ())


@dataclass(frozen=True)
class NodeFigures:
    """The figures of one node that are measured beside running jobs."""

    cpus: Figure
    memory_mib: Figure
    gpus: GpuNames = None

    def __post_init__(self) -> None:
        _check_names(self.gpus or ())


@dataclass(frozen=True)
class JobReport:
    """The findings of a job with one CPU on a node."""

    node: Name
    cpus: Figure
    """CPUs that its programs use."""
    reachable_cpus: Figure
    """CPUs that they use when they ask the kernel for all."""
    memory_bytes: Limit
    """The kernel's limit of the job's own control group; MOST for none."""
    tmp_device: Figure
    shm_device: Figure
    open_files: Limit
    """Soft limits; MOST for none."""
    locked_bytes: Limit
    processes: Limit

    def __post_init__(self) -> None:
        _check_names([self.node])
        for name in ("memory_bytes", "open_files", "locked_bytes", "processes"):
            if (limit := getattr(self, name)) == -1:
                object.__setattr__(self, name, float(MOST))
            elif limit < 0:
                raise ValueError(f"{name} is neither -1 nor a size")


@dataclass(frozen=True)
class AllReduceRow:
    """The measurement with one size."""

    size_mib: Figure
    bus_mib_per_second: Figure
    milliseconds: Figure
    right: bool
    """Whether the sum was right."""


@dataclass(frozen=True)
class AllReduceReport:
    backend: Literal["gloo", "nccl"]
    ranks: Figure
    results: Annotated[tuple[AllReduceRow, ...], msgspec.Meta(min_length=1, max_length=MAX_ROWS)]


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
    largest = max(row.size_mib for row in report.results)
    findings: list[NodeFinding] = []
    for row in report.results:
        is_judged = row.size_mib == largest
        fast_enough = not is_judged or row.bus_mib_per_second >= least
        findings.append(
            NodeFinding(
                "",
                f"all-reduce {row.size_mib} MiB",
                PASS if row.right and fast_enough else FAIL,
                f"{row.bus_mib_per_second:.0f} MiB/s bus ({row.milliseconds:.1f} ms)",
                f">= {least} MiB/s" if is_judged else "right sum",
                f"{report.ranks} ranks, {report.backend}" if row.right else "The sum was wrong.",
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
    return _read(output, NodeFigures)


def node_report(output: bytes) -> NodeReport:
    """Read the figures of one node. Raises BadReport. The engine bounds the output."""
    return _read(output, NodeReport)


def job_reports(output: bytes) -> list[JobReport]:
    """Read what a job found on each of its nodes, one line each. Raises BadReport."""
    reports = [_read(line, JobReport) for line in output.splitlines()[:MAX_NODES]]
    if not reports:
        raise BadReport("it is empty")
    return reports


def all_reduce_report(output: bytes) -> AllReduceReport:
    """Read the figures of a measurement between nodes. Raises BadReport."""
    return _read(output, AllReduceReport)


def last_line(stderr: bytes, exit_code: int) -> str:
    """Return the last line that a failed program printed, shortened, without control characters."""
    lines = stderr.decode(errors="replace").strip().splitlines()
    return shown(lines[-1] if lines else "", MAX_LINE_CHARS) or f"exit code {exit_code}"


def shown(text: str, longest: int = MAX_LINE_CHARS) -> str:
    """Return the text of a program shortened, without control characters."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:longest])


def _read(output: bytes, kind: type[_Report]) -> _Report:
    try:
        return msgspec.json.decode(output, type=kind)
    except (ValueError, RecursionError) as error:  # those of msgspec are ValueErrors
        raise BadReport(shown(str(error))) from None


def _check_names(names: Sequence[str]) -> None:
    if not all(map(str.isprintable, names)):
        raise ValueError("a name has characters that cannot be printed")
