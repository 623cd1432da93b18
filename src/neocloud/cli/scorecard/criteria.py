"""Criteria by which ClusterMAX rates GPU clouds, in our words, with its auditor's checks for each.

Source: ClusterMAX 2.0 (6 November 2025) and its pages on security, lifecycle, storage, networking, Slurm
and health checks. The ids are ours. The tier is the lowest at which the text treats absence as a gap: our
reading, since no formal table was published. Keys of checks are those of `clustermax` 0.2.1.
"""

from dataclasses import dataclass
from enum import StrEnum

SOURCE = "ClusterMAX 2.0, 6 November 2025; checks of clustermax 0.2.1"


class Tier(StrEnum):
    ALL = "all"
    SILVER = "silver"
    GOLD = "gold"
    PLATINUM = "platinum"


@dataclass(frozen=True)
class Criterion:
    id: str
    title: str
    tier: Tier
    needs_document: bool = False
    """No program can find it out: a person attests it."""
    checks: tuple[str, ...] = ()
    """Checks of the auditor."""


A, S, G, P = Tier.ALL, Tier.SILVER, Tier.GOLD, Tier.PLATINUM
_PATCHED = tuple(
    f"securityVersions.{name}.status"
    for name in (
        "connectxFirmware",
        "cudaToolkit",
        "dcgm",
        "dcgmExporter",
        "docker",
        "nvidiaContainerToolkit",
        "nvidiaDriver",
        "runc",
        "virtioNetBluefield",
    )
)
_ACCESS = tuple(
    f"access.{name}" for name in ("slurmCommandsOk", "sshToComputeNodes", "sudoAvailable", "userManagement")
)
_CONTAINERS = (
    "containers.pyxisRuntimeWorks",
    "containers.workerCheckOk",
    "containers.enrootImportWorks",
    "containers.enroot",
    "containers.dockerOnWorkers",
    "containers.singularity",
    "containers.nvidiaContainerToolkit",
)
_FABRIC_PATH = (
    "gpus.gpuDirectRdmaPath",
    "gpus.gpuDirectRdmaPath.nvidiaPeermemLegacy",
    "gpus.gdrcopy.installed",
    "gpus.pcieAcs.enabled",
)
_PROFILING = (
    "software.ncu.installed",
    "software.ncu.profilingEnabled",
    "software.perf.installed",
    "software.perf.kptrRestrict",
    "software.perf.perfEventParanoid",
)
_HOST = (
    "securityVersions.virtioNetBluefield.exposure",
    "security.guestKernel.newerInstalled",
    "security.fragnesia.status",
    "security.januscape.status",
)

CRITERIA: tuple[Criterion, ...] = (
    Criterion("SEC-1", "SOC 2 Type II or ISO 27001", A, needs_document=True),
    Criterion("SEC-2", "Penetration test that includes the fabric", G, needs_document=True),
    Criterion("SEC-3", "A virtual machine between tenants that share a host", A),
    Criterion("SEC-4", "Networks of tenants are isolated, on the fabric too", A),
    Criterion("SEC-5", "Keys of the InfiniBand fabric are set", G, checks=("ufm-profile",)),
    Criterion(
        "SEC-6",
        "Tenants reach no BMC and no other device; PCIe and NVLink end at the tenant",
        G,
        checks=(
            "bmc-ipmi",
            "pcie-passthrough",
            "nvlink-boundary",
            "vm_iommu.status",
            "securityVersions.dpuHostIsolation.status",
        ),
    ),
    Criterion("SEC-7", "Drivers, runtimes, firmware and kernels are patched", A, checks=(*_PATCHED, *_HOST)),
    Criterion("SEC-8", "Audit log: who, from where, on what, with which result; 90 days", S),
    Criterion("LIF-1", "Public prices and delivery dates; no fees to leave", S, needs_document=True),
    Criterion("LIF-2", "Onboarding by console, API and Terraform; time to the first job", S),
    Criterion("LIF-3", "Published burn-in and acceptance, with results for each node", P),
    Criterion("LIF-4", "After a reboot everything works without a person", S),
    Criterion("LIF-5", "Support says when an incident will end", G, needs_document=True),
    Criterion(
        "ORC-1",
        "Managed Slurm and Kubernetes: ssh, users, accounting, single sign-on",
        S,
        checks=(*_ACCESS, "access.externalIdp.detected", "slurm.accounting.sacctAvailable"),
    ),
    Criterion(
        "ORC-2",
        "Slurm knows topology, containers, MPI, modules and GPUs",
        S,
        checks=(*_CONTAINERS, "software.cudaVisibleDevicesStatus", "software.lmod.modulesStatus"),
    ),
    Criterion("ORC-3", "Kubernetes: storage, operators, gang scheduling, ingress", S),
    Criterion("ORC-4", "GPUs and adapters exchange data without the host's memory", S, checks=_FABRIC_PATH),
    Criterion(
        "STO-1",
        "A shared filesystem and object storage, with measured bandwidth",
        S,
        checks=("storage.rwxStatus",),
    ),
    Criterion("STO-2", "Mounts stay", S),
    Criterion("STO-3", "Many small files: the time to import PyTorch does not grow with the nodes", G),
    Criterion("STO-4", "Backups, snapshots, write-once; restores are tested", G, needs_document=True),
    Criterion(
        "NET-1",
        "A fabric without bottleneck, whose topology the scheduler uses",
        G,
        checks=("networking.topologyConfigured", "networking.hcaNamingValid", "nccl_topo_file.status"),
    ),
    Criterion(
        "NET-2",
        "NCCL is configured, and nothing is forced",
        S,
        checks=("networking.ncclAutoConfig", "software.nccl.installed", "nccl_ib_qps.status"),
    ),
    Criterion("NET-3", "Bandwidth of collectives at 16 to 512 MiB, from 2 to N nodes", S),
    Criterion("NET-4", "Reductions in the switches, and NCCL's profiler", P),
    Criterion("REL-1", "A service level for links and nodes, with credits", G, needs_document=True),
    Criterion("REL-2", "Hot spares: a failed node is replaced in 90 s", P),
    Criterion("REL-3", "Interruptions and goodput are published", P),
    Criterion("MON-1", "Passive checks every few seconds", S, checks=("healthChecks.nhcInstalled",)),
    Criterion("MON-2", "Active checks weekly, on idle nodes, with reference numbers", P),
    Criterion("MON-3", "Weekly tests of silent corruption and of convergence", P),
    Criterion(
        "MON-4",
        "Dashboards: FLOP/s, link flaps, queue, state of nodes",
        G,
        checks=("healthChecks.monitoringStack.dcgmExporter",),
    ),
    Criterion(
        "MON-5",
        "Slurm drains by health checks of GPUs, and repairs start by themselves",
        S,
        checks=("healthChecks.dcgmInstalled", "healthChecks.dcgmSlurm"),
    ),
    Criterion("MON-6", "Everybody may profile; GPU use is known for each job", S, checks=_PROFILING),
)
