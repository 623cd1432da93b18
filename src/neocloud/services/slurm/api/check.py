"""ClusterService.Check: is every node what its preset promises, and do the nodes work together?

Verdicts are pass, fail and not_run; a check that could not run is never called a pass. A node that fails a
check of its own is drained in Slurm with the reason (SLURM-18, SLURM-19).
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from neocloud.core import contract
from neocloud.core.service import Call
from neocloud.engines.base import EngineError
from neocloud.messages.neocloud.slurm.v1 import CheckClusterRequest, CheckClusterResponse, CheckResult
from neocloud.services.compute.public import Preset, preset
from neocloud.services.slurm.access import SlurmAccess
from neocloud.services.slurm.api.cluster import access, open_slurm, ready_cluster
from neocloud.services.slurm.api.reports import BadReport, all_reduce_report, last_line, probe_report
from neocloud.services.slurm.slurmrestd import SlurmApi, SlurmNode

PASS, FAIL, NOT_RUN = "pass", "fail", "not_run"

MEMORY_TOLERANCE = 0.95
"""A node may miss 5 % of its preset's memory to the kernel and the daemons."""
WRITE_MIB_PER_SECOND = 50
READ_MIB_PER_SECOND = 100
"""Of the shared root, one node alone. Chosen by us: below this, loading a dataset is what a job waits for."""
CLOCK_SKEW_SECONDS = 0.5
ALL_REDUCE_MIB_PER_SECOND = {"gloo": 50, "nccl": 5_000}
"""Bus bandwidth at 128 MiB, by backend. Chosen by us; the published NCCL figure is 488 GB/s (NET-02)."""
PROBE_SECONDS = 120.0
ALL_REDUCE_SECONDS = 100
"""The job of the measurement is ended with it, so that it does not hold the nodes."""
OUT_OF_TIME = 124
"""What `timeout` exits with when the time was up."""
RESUME_SECONDS = 15.0
"""A resumed node counts as not responding until slurmctld has pinged it."""
DRAIN_PREFIX = "[neocloud] readiness: "


@dataclass(frozen=True)
class Finding:
    node: str
    check: str
    verdict: str
    measured: str = ""
    threshold: str = ""
    message: str = ""


async def check(call: Call, request: CheckClusterRequest) -> CheckClusterResponse:
    cluster = await ready_cluster(call, request.id)
    presets = _presets_by_node(cluster.spec)
    if not presets:
        raise contract.bad_state(request.id, "The cluster has no workers; add some before checking it.")
    async with open_slurm(call, request.id) as slurm:
        known = {node.name: node for node in await slurm.nodes()}
        findings = await _node_findings(access(call), request.id, presets, known)
        drained: set[str] = set()
        if not request.report_only:
            drained = await _drain_failing(slurm, findings, known)
            await _resume_passing(call, slurm, findings, known)
            known = {node.name: node for node in await slurm.nodes()}
        findings += await _shared_file(call, request.id, sorted(presets))
        findings += await _all_reduce(call, request.id, sorted(presets), known)
    return CheckClusterResponse(
        results=[
            CheckResult(
                node=finding.node,
                check=finding.check,
                verdict=finding.verdict,
                measured=finding.measured,
                threshold=finding.threshold,
                message=finding.message,
                drained=finding.verdict == FAIL and finding.node in drained,
            )
            for finding in findings
        ]
    )


def _presets_by_node(spec: Any) -> dict[str, Preset]:
    return {
        f"{node_set.name}-{index}": preset(node_set.platform, node_set.preset)
        for node_set in spec.node_sets
        for index in range(node_set.count)
    }


async def _node_findings(
    cluster: SlurmAccess, cluster_id: str, presets: dict[str, Preset], known: dict[str, SlurmNode]
) -> list[Finding]:
    """Nodes are probed one after another: the speed of the shared root is one node's alone."""
    findings: list[Finding] = []
    for name in sorted(presets):
        findings.append(slurm_finding(name, known.get(name)))
        try:
            probe, skew = await _probe(cluster, cluster_id, name)
        except EngineError as error:
            findings.append(Finding(name, "probe", FAIL, message=f"The node does not answer: {error}"))
            continue
        except BadReport as error:
            findings.append(
                Finding(name, "probe", FAIL, message=f"The node's report cannot be used: {error}.")
            )
            continue
        findings += probe_findings(name, presets[name], probe, skew)
    return findings


async def _probe(cluster: SlurmAccess, cluster_id: str, node: str) -> tuple[dict[str, Any], float]:
    """What the node says of itself, and how far its clock is from ours in seconds, at the least."""
    script = resources.files("neocloud.services.slurm.api.probes").joinpath("node.py").read_bytes()
    before = time.time()
    result = await cluster.run_in_shared_root(
        cluster_id, node, ["python3", "-", "/home"], stdin=script, timeout_seconds=PROBE_SECONDS
    )
    after = time.time()
    if result.exit_code:
        raise EngineError(last_line(result.stderr, result.exit_code))
    probe = probe_report(result.stdout)
    skew = max(before - probe["time"], probe["time"] - after, 0.0)
    return probe, skew


def slurm_finding(name: str, node: SlurmNode | None) -> Finding:
    if node is None:
        return Finding(name, "slurm", FAIL, "missing", "registered", "The node is not known to Slurm.")
    is_out = "DRAIN" in node.states and not node.reason.startswith(DRAIN_PREFIX)
    verdict = PASS if node.is_available and not is_out else FAIL
    return Finding(name, "slurm", verdict, node.state_text, "registered, not drained", node.reason)


def probe_findings(name: str, wanted: Preset, probe: dict[str, Any], skew: float) -> list[Finding]:
    """Pure: what a probe's figures mean against the preset."""
    least_mib = int(wanted.memory_gib * 1024 * MEMORY_TOLERANCE)
    write, read = probe["write_mib_per_second"], probe["read_mib_per_second"]
    return [
        _at_least(name, "cpu", probe["cpus"], wanted.vcpu, "vCPU"),
        _at_least(name, "memory", probe["memory_mib"], least_mib, "MiB"),
        gpu_finding(name, wanted, probe["gpus"]),
        _at_least(name, "shared root write", write, WRITE_MIB_PER_SECOND, "MiB/s"),
        _at_least(name, "shared root read", read, READ_MIB_PER_SECOND, "MiB/s"),
        Finding(
            name,
            "clock skew",
            PASS if skew <= CLOCK_SKEW_SECONDS else FAIL,
            f"{skew:.3f} s",
            f"<= {CLOCK_SKEW_SECONDS} s",
        ),
    ]


def gpu_finding(name: str, wanted: Preset, found: Sequence[str] | None) -> Finding:
    if not wanted.gpus and not found:
        return Finding(name, "gpu", NOT_RUN, "none", "none in preset", "The preset has no GPU.")
    measured = "no driver" if found is None else f"{len(found)} x {found[0]}" if found else "0"
    verdict = PASS if len(found or ()) == wanted.gpus else FAIL
    return Finding(name, "gpu", verdict, measured, f"{wanted.gpus} x {wanted.gpu_type}")


def _at_least(node: str, check: str, measured: float, least: float, unit: str) -> Finding:
    return Finding(
        node, check, PASS if measured >= least else FAIL, f"{measured:.6g} {unit}", f">= {least:g} {unit}"
    )


async def _shared_file(call: Call, cluster_id: str, nodes: list[str]) -> list[Finding]:
    """A file written on the first node must be there on every other."""
    path, token = f"/home/.neocloud-shared-{call.request_id}", call.request_id
    cluster = access(call)

    async def run(node: str, *command: str) -> str:
        result = await cluster.run_in_shared_root(cluster_id, node, command)
        return result.stdout.decode(errors="replace").strip()

    writer = ["/bin/sh", "-c", 'printf %s "$2" > "$1"', "write", path, token]
    findings: list[Finding] = []
    try:
        await run(nodes[0], *writer)
        for node in nodes[1:]:
            seen = await run(node, "cat", path)
            verdict, text = (PASS, "seen") if seen == token else (FAIL, "not seen")
            findings.append(Finding(node, "shared file", verdict, text, f"written on {nodes[0]}"))
        await run(nodes[0], "rm", "-f", path)
    except EngineError as error:
        findings.append(Finding("", "shared file", NOT_RUN, message=str(error)))
    if len(nodes) == 1:
        findings.append(
            Finding(nodes[0], "shared file", NOT_RUN, message="Needs two nodes; the cluster has one.")
        )
    return findings


_ALL_REDUCE = """
umask 077; script=$(mktemp /home/.neocloud-all-reduce.XXXXXX) && cat >"$script" || exit 1
trap 'rm -f "$script"' EXIT
export SCRIPT="$script" MASTER_PORT=$1 OMP_NUM_THREADS=1
timeout "$2" srun --job-name=neocloud-check --immediate=15 --time=3 --overlap --nodes="$3" \\
    --ntasks-per-node=1 --nodelist="$4" /bin/bash -c '
        MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
        export MASTER_ADDR; exec python3 "$SCRIPT"'
"""
"""Rank 0 is on the first node of the job's own list: Slurm's order, in which nodes came to the cluster."""


async def _all_reduce(
    call: Call, cluster_id: str, nodes: list[str], known: dict[str, SlurmNode]
) -> list[Finding]:
    name = "all-reduce"
    if len(nodes) < 2:
        return [Finding("", name, NOT_RUN, message="Needs two nodes; the cluster has one.")]
    out = [node for node in nodes if node not in known or not known[node].takes_jobs]
    if out:
        return [Finding("", name, NOT_RUN, message=f"Needs every node; {', '.join(out)} cannot run jobs.")]
    port = 20_000 + time.monotonic_ns() % 20_000
    script = resources.files("neocloud.services.slurm.api.probes").joinpath("all_reduce.py").read_bytes()
    arguments = [str(port), str(ALL_REDUCE_SECONDS), str(len(nodes)), ",".join(nodes)]
    command = ["/bin/bash", "-l", "-c", _ALL_REDUCE, "check", *arguments]
    try:
        result = await access(call).run_in_login_shell(
            cluster_id, command, stdin=script, timeout_seconds=PROBE_SECONDS
        )
    except EngineError as error:
        return [Finding("", name, NOT_RUN, message=f"Did not finish: {error}")]
    text = result.stderr.decode(errors="replace").strip()
    if "Unable to allocate resources" in text:
        return [Finding("", name, NOT_RUN, message="The nodes are busy; run the check when jobs have ended.")]
    if result.exit_code == OUT_OF_TIME:
        message = f"Did not finish within {ALL_REDUCE_SECONDS} s: a worker is stuck, or they miss each other."
        return [Finding("", name, FAIL, message=message)]
    if result.exit_code:
        return [Finding("", name, FAIL, message=last_line(result.stderr, result.exit_code))]
    try:
        return all_reduce_findings(all_reduce_report(result.stdout))
    except BadReport as error:
        return [Finding("", name, FAIL, message=f"The report of the job cannot be used: {error}.")]


def all_reduce_findings(report: dict[str, Any]) -> list[Finding]:
    """Pure. Only the largest size is judged: small ones measure latency."""
    backend, rows = report["backend"], report["results"]
    least = ALL_REDUCE_MIB_PER_SECOND[backend]
    largest = max(row["size_mib"] for row in rows)
    findings = []
    for row in rows:
        is_judged = row["size_mib"] == largest
        fast_enough = not is_judged or row["bus_mib_per_second"] >= least
        findings.append(
            Finding(
                "",
                f"all-reduce {row['size_mib']} MiB",
                PASS if row["right"] and fast_enough else FAIL,
                f"{row['bus_mib_per_second']:.0f} MiB/s bus ({row['milliseconds']:.1f} ms)",
                f">= {least} MiB/s" if is_judged else "right sum",
                f"{report['ranks']} ranks, {backend}" if row["right"] else "The sum was wrong.",
            )
        )
    return findings


async def _drain_failing(
    slurm: SlurmApi, findings: Sequence[Finding], known: dict[str, SlurmNode]
) -> set[str]:
    """Drain every node that failed a check of its own; returns their names."""
    failed: dict[str, list[str]] = {}
    for finding in findings:
        if finding.verdict == FAIL and finding.node in known and finding.check != "slurm":
            failed.setdefault(finding.node, []).append(f"{finding.check} {finding.measured}".strip())
    for node, reasons in failed.items():
        await slurm.set_node_state(node, "DRAIN", (DRAIN_PREFIX + "; ".join(reasons))[:200])
    return set(failed)


async def _resume_passing(
    call: Call, slurm: SlurmApi, findings: Sequence[Finding], known: dict[str, SlurmNode]
) -> None:
    """Give back nodes that an earlier check drained and that pass now; others' drains stay."""
    failed = {finding.node for finding in findings if finding.verdict == FAIL}
    resumed = {
        name for name, node in known.items() if name not in failed and node.reason.startswith(DRAIN_PREFIX)
    }
    for name in resumed:
        await slurm.set_node_state(name, "RESUME", "")
    clock = call.dependencies.clock
    deadline = clock.monotonic() + RESUME_SECONDS
    while resumed and clock.monotonic() < deadline:
        resumed -= {node.name for node in await slurm.nodes() if node.takes_jobs}
        await clock.sleep(0.2)
