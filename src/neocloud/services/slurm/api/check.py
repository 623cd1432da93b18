"""ClusterService.Check: compare every node with its preset, and test that the nodes work together.

A node that fails a check of its own is drained in Slurm with the reason (SLURM-18, SLURM-19).
"""

import time
from collections.abc import Mapping, Sequence
from importlib import resources

from neocloud.core import contract
from neocloud.core.service import Call
from neocloud.engines.base import EngineError
from neocloud.messages.neocloud.slurm.v1 import (
    CheckClusterRequest,
    CheckClusterResponse,
    CheckResult,
    ClusterSpec,
)
from neocloud.services.compute.public import Preset, preset
from neocloud.services.slurm.access import SlurmAccess, api_errors
from neocloud.services.slurm.api.confinement import (
    JOB_MIB,
    NO_GROUPS_FILE,
    confinement_findings,
    confinement_not_run,
    lacks_groups,
)
from neocloud.services.slurm.api.findings import (
    DRAIN_PREFIX,
    FAIL,
    NOT_RUN,
    PASS,
    BadReport,
    NodeFinding,
    NodeReport,
    all_reduce_findings,
    all_reduce_report,
    job_reports,
    last_line,
    node_report,
    probe_findings,
    slurm_finding,
)
from neocloud.services.slurm.slurm_records import SlurmNode
from neocloud.services.slurm.slurmrestd import SlurmApi

PROBE_SECONDS = 120.0
CONFINEMENT_SECONDS = 40
ALL_REDUCE_SECONDS = 100
"""The job of the measurement ends after it, so that it does not hold the nodes."""
OUT_OF_TIME = 124
"""The exit code of `timeout` when the time is up."""
POWERED_DOWN = "It is powered down; a job that waits for it starts it."
RESUME_SECONDS = 15.0
"""A resumed node counts as not responding until slurmctld has pinged it."""


async def check(call: Call, request: CheckClusterRequest) -> CheckClusterResponse:
    access = SlurmAccess.of(call.dependencies)
    with api_errors(request.id):
        cluster = await access.ready_cluster(request.id)
        presets = _presets_by_node(ClusterSpec.FromString(cluster.spec))
        if not presets:
            raise contract.bad_state(request.id, "The cluster has no workers; add some before checking it.")
        async with access.ready_api(request.id) as slurm:
            known = await _known_nodes(slurm)
            off = sorted(name for name in presets if name in known and known[name].is_off)
            presets = {name: shape for name, shape in presets.items() if name not in off}
            findings, reports = await _node_findings(access, request.id, presets, known)
            drained: set[str] = set()
            if not request.report_only:
                drained = await _drain_failing(slurm, findings, known)
                await _resume_passing(call, slurm, findings, known)
                known = await _known_nodes(slurm)
            findings += [NodeFinding(name, "slurm", NOT_RUN, message=POWERED_DOWN) for name in off]
            findings += await _shared_file(access, request.id, sorted(presets), call.request_id)
            findings += await _confinement(access, request.id, presets, known, reports)
            findings += await _all_reduce(access, request.id, sorted(presets), known)
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


async def _known_nodes(slurm: SlurmApi) -> dict[str, SlurmNode]:
    return {node.name: node for node in await slurm.nodes()}


def _presets_by_node(spec: ClusterSpec) -> dict[str, Preset]:
    return {
        f"{node_set.name}-{index}": preset(node_set.platform, node_set.preset)
        for node_set in spec.node_sets
        for index in range(node_set.count)
    }


async def _node_findings(
    access: SlurmAccess, cluster_id: str, presets: Mapping[str, Preset], known: Mapping[str, SlurmNode]
) -> tuple[list[NodeFinding], dict[str, NodeReport]]:
    """Probe one node after another: each has the whole speed of the shared root."""
    findings: list[NodeFinding] = []
    reports: dict[str, NodeReport] = {}
    for name in sorted(presets):
        findings.append(slurm_finding(name, known.get(name)))
        try:
            report, skew = await _probe(access, cluster_id, name)
        except EngineError as error:
            findings.append(NodeFinding(name, "probe", FAIL, message=f"The node does not answer: {error}"))
            continue
        except BadReport as error:
            findings.append(
                NodeFinding(name, "probe", FAIL, message=f"The node's report cannot be used: {error}.")
            )
            continue
        reports[name] = report
        findings += probe_findings(name, presets[name], report, skew)
    return findings, reports


async def _probe(access: SlurmAccess, cluster_id: str, node: str) -> tuple[NodeReport, float]:
    """Return the node's report, and the least difference of its clock from ours, in seconds."""
    before = time.time()
    result = await access.run_in_shared_root(
        cluster_id,
        node,
        ["python3", "-", "/home"],
        stdin=probe_program("node.py"),
        timeout_seconds=PROBE_SECONDS,
    )
    after = time.time()
    if result.exit_code:
        raise EngineError(last_line(result.stderr, result.exit_code))
    report = node_report(result.stdout)
    return report, max(before - report.time, report.time - after, 0.0)


def probe_program(name: str) -> bytes:
    """Return the source of a probe."""
    return resources.files("neocloud.services.slurm.api").joinpath("probes", name).read_bytes()


async def _shared_file(
    access: SlurmAccess, cluster_id: str, nodes: Sequence[str], token: str
) -> list[NodeFinding]:
    """Test that a file written on the first node is there on every other."""
    if not nodes:
        return [NodeFinding("", "shared file", NOT_RUN, message="No node is there.")]
    path = f"/home/.neocloud-shared-{token}"

    async def run(node: str, *command: str) -> str:
        result = await access.run_in_shared_root(cluster_id, node, command)
        return result.stdout.decode(errors="replace").strip()

    writer = ["/bin/sh", "-c", 'printf %s "$2" > "$1"', "write", path, token]
    findings: list[NodeFinding] = []
    try:
        await run(nodes[0], *writer)
        for node in nodes[1:]:
            content = await run(node, "cat", path)
            verdict, text = (PASS, "seen") if content == token else (FAIL, "not seen")
            findings.append(NodeFinding(node, "shared file", verdict, text, f"written on {nodes[0]}"))
        await run(nodes[0], "rm", "-f", path)
    except EngineError as error:
        findings.append(NodeFinding("", "shared file", NOT_RUN, message=str(error)))
    if len(nodes) == 1:
        findings.append(
            NodeFinding(nodes[0], "shared file", NOT_RUN, message="Needs two nodes; the cluster has one.")
        )
    return findings


_CONFINEMENT = f"""
exec timeout "$1" srun --job-name=neocloud-check --immediate=15 --time=2 --nodes="$2" --ntasks-per-node=1 \\
    --cpus-per-task=1 --mem={JOB_MIB}M --mpi=none --nodelist="$3" python3 -
"""


async def _confinement(
    access: SlurmAccess,
    cluster_id: str,
    presets: Mapping[str, Preset],
    known: Mapping[str, SlurmNode],
    reports: Mapping[str, NodeReport],
) -> list[NodeFinding]:
    """Run a job with one CPU on every node that takes jobs, and judge what it could use there."""
    nodes = sorted(name for name in presets if name in known and known[name].takes_jobs)
    if not nodes:
        return confinement_not_run("No node can run jobs.")
    arguments = [str(CONFINEMENT_SECONDS), str(len(nodes)), ",".join(nodes)]
    command = ["/bin/bash", "-l", "-c", _CONFINEMENT, "check", *arguments]
    try:
        result = await access.run_in_login_shell(
            cluster_id, command, stdin=probe_program("confinement.py"), timeout_seconds=PROBE_SECONDS
        )
        if result.exit_code:
            return confinement_not_run(last_line(result.stderr, result.exit_code))
        jobs = job_reports(result.stdout)
    except EngineError as error:
        return confinement_not_run(f"Did not finish: {error}")
    except BadReport as error:
        return confinement_not_run(f"The report of the job cannot be used: {error}.")
    has_gpus = any(preset.gpus for preset in presets.values())
    without = lacks_groups(jobs)
    why = await _why_no_groups(access, cluster_id, without[0]) if without else ""
    return confinement_findings(jobs, reports, has_gpus=has_gpus, why=why)


async def _why_no_groups(access: SlurmAccess, cluster_id: str, node: str) -> str:
    """Return why the jobs of a worker have no control groups; "" where it does not say."""
    try:
        result = await access.run_beside_daemons(cluster_id, node, ["cat", NO_GROUPS_FILE])
    except EngineError:
        return ""
    return last_line(result.stdout, 0) if result.stdout.strip() and not result.exit_code else ""


_ALL_REDUCE = """
umask 077; script=$(mktemp /home/.neocloud-all-reduce.XXXXXX) && cat >"$script" || exit 1
trap 'rm -f "$script"' EXIT
export SCRIPT="$script" MASTER_PORT=$1 OMP_NUM_THREADS=1
timeout "$2" srun --job-name=neocloud-check --immediate=15 --time=3 --overlap --nodes="$3" \\
    --ntasks-per-node=1 --nodelist="$4" /bin/bash -c '
        MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
        export MASTER_ADDR; exec python3 "$SCRIPT"'
"""
"""Rank 0 is on the first node of the job's own list, where nodes are in the order in which they joined."""


async def _all_reduce(
    access: SlurmAccess, cluster_id: str, nodes: Sequence[str], known: Mapping[str, SlurmNode]
) -> list[NodeFinding]:
    name = "all-reduce"
    if len(nodes) < 2:
        return [NodeFinding("", name, NOT_RUN, message="Needs two nodes that are there.")]
    out = [node for node in nodes if node not in known or not known[node].takes_jobs]
    if out:
        return [
            NodeFinding("", name, NOT_RUN, message=f"Needs every node; {', '.join(out)} cannot run jobs.")
        ]
    port = 20_000 + time.monotonic_ns() % 20_000
    arguments = [str(port), str(ALL_REDUCE_SECONDS), str(len(nodes)), ",".join(nodes)]
    command = ["/bin/bash", "-l", "-c", _ALL_REDUCE, "check", *arguments]
    try:
        result = await access.run_in_login_shell(
            cluster_id, command, stdin=probe_program("all_reduce.py"), timeout_seconds=PROBE_SECONDS
        )
    except EngineError as error:
        return [NodeFinding("", name, NOT_RUN, message=f"Did not finish: {error}")]
    text = result.stderr.decode(errors="replace").strip()
    if "Unable to allocate resources" in text:
        return [
            NodeFinding("", name, NOT_RUN, message="The nodes are busy; run the check when jobs have ended.")
        ]
    if result.exit_code == OUT_OF_TIME:
        message = f"Did not finish within {ALL_REDUCE_SECONDS} s: a worker is stuck or not reachable."
        return [NodeFinding("", name, FAIL, message=message)]
    if result.exit_code:
        return [NodeFinding("", name, FAIL, message=last_line(result.stderr, result.exit_code))]
    try:
        return all_reduce_findings(all_reduce_report(result.stdout))
    except BadReport as error:
        return [NodeFinding("", name, FAIL, message=f"The report of the job cannot be used: {error}.")]


async def _drain_failing(
    slurm: SlurmApi, findings: Sequence[NodeFinding], known: Mapping[str, SlurmNode]
) -> set[str]:
    """Drain every node that failed a check of its own, and return their names."""
    failed: dict[str, list[str]] = {}
    for finding in findings:
        if finding.verdict == FAIL and finding.node in known and finding.check != "slurm":
            failed.setdefault(finding.node, []).append(f"{finding.check} {finding.measured}".strip())
    for node, reasons in failed.items():
        await slurm.set_node_state(node, "DRAIN", (DRAIN_PREFIX + "; ".join(reasons))[:200])
    return set(failed)


async def _resume_passing(
    call: Call, slurm: SlurmApi, findings: Sequence[NodeFinding], known: Mapping[str, SlurmNode]
) -> None:
    """Resume nodes that an earlier check drained and that pass now; other drained nodes stay drained."""
    failed = {finding.node for finding in findings if finding.verdict == FAIL}
    resumed = {
        name
        for name, node in known.items()
        if name not in failed and node.reason.startswith(DRAIN_PREFIX) and not node.is_off
    }
    for name in resumed:
        await slurm.set_node_state(name, "RESUME", "")
    clock = call.dependencies.clock
    deadline = clock.monotonic() + RESUME_SECONDS
    while resumed and clock.monotonic() < deadline:
        resumed -= {node.name for node in await slurm.nodes() if node.takes_jobs}
        await clock.sleep(0.2)
