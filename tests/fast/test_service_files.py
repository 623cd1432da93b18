"""The files that a service may have (docs/howto/add-a-service.md), the same in all services."""

import ast
from pathlib import Path

import pytest

from tests import ROOT

SERVICES = ROOT / "src" / "neocloud" / "services"
REQUIRED = {"README.md", "__init__.py"}
USUAL = REQUIRED | {
    "types.py",
    "public.py",
    "rules",
    "api",
    "reconcile",
    "render",
}
"""A name without a suffix may be a file, or a folder of three files or more."""
OTHERS = {
    "ai": {"logs.py": "what programs printed: the API reads it, reconcilers keep its end"},
    "billing": {
        "prices.yaml": "the price list",
        "models.yaml": "the sizes of known models",
        "tco": "a calculator with no resources",
    },
    "compute": {
        "catalogue.py": "platforms and presets",
        "catalogue.yaml": "platforms and presets",
        "capacity.py": "what nodes take of a machine and what is left: public.py and the API use it",
        "maintenance.py": "instances under maintenance: public.py, rules and the API use it",
        "hosts.py": "which hosts take new work: public.py and reconcilers of other services use it",
        "preemption.py": "which machines give way to a request: rules, reconcilers and the API use it",
        "encryption.py": "the keys of disks: reconcilers and views use them",
        "disk_export.py": "the program of the pod that reads a disk for its export",
        "disk_import.py": "the program of the pod that checks and converts the disk of an image",
        "disk_limits.py": "the published limits of disk types: rules, reconcilers and views use them",
        "started_pod.py": "what of a machine's pod stays as it was started",
    },
    "fleet": {
        "checks": "active checks: programs, runs, pairs and records",
        "logs": "the state of pools from their events: reconcilers, checks and the API use it",
        "credits.py": "what of a cluster is not charged, for billing",
        "metrics.py": "the metrics of nodes for /metrics",
        "node_agents.py": "verdicts from the agents of nodes",
        "sources.py": "verdicts from the engine, Slurm and the figures of nodes",
    },
    "iam": {
        "access": "who calls, and what they may do: used by the server at every call",
        "bootstrap.py": "the first tenant, project and operator",
        "defaults.py": "what a new tenant and project start with",
        "roles_page.py": "the generator of docs/reference/roles.md",
    },
    "inference": {
        "architectures.py": "the models that the model server can load: reconcilers refuse others",
        "architectures.txt": "their names",
        "model_server_key.py": "the key between gateway and model servers",
        "gateway_link.py": "what gateway and control plane tell each other",
    },
    "monitoring": {"history.py": "the client of the store of metrics"},
    "quotas": {"quotas.yaml": "the usual limits", "ledger.py": "counters, in the creating transaction"},
    "registry": {
        "artifact_files.py": "what manifests of other artifacts say",
        "image_documents.py": "what manifests and configurations of images say",
        "image_pulls.py": "finds images for other services, as the account that asked",
        "repository_client.py": "the client of a repository behind it",
    },
    "slurm": {
        "access.py": "the client of a cluster's login node",
        "accounting.py": "what a job got and used",
        "metrics.py": "the metrics of clusters for /metrics",
        "batch_jobs.py": "how jobs are submitted and read",
        "job_output.py": "reads what a job printed, as its user",
        "controller_logs.py": "follows the logs of controllers, which wake clusters and pools",
        "slurmrestd.py": "the client of a cluster's slurmrestd",
        "slurm_records.py": "nodes and jobs as slurmrestd answers them",
        "worker_agents.py": "the node agents of workers, for the fleet service",
        "worker_nodes.py": "the workers of clusters, for the fleet service",
        "submount_rules.py": "rules of folders that each worker has for itself",
        "topology_rules.py": "rules of the tree of switches",
    },
    "storage": {
        "gateway_link.py": "what the object gateway and control plane tell each other",
        "object_clients.py": "the rights and keys of the three files below",
        "object_keys.py": "keys for the gateway, which keeps files of projects in buckets",
        "object_reads.py": "reads objects for other services, as the account that asked",
        "object_writes.py": "writes objects for other services, as the account that asked",
        "report.py": "the report for the operator in neo status",
    },
    "tuning": {
        "estimates.py": "settings and duration of a job that is not created yet",
        "work_folder.py": "the folder that a job shares with its recipe",
    },
    "vpc": {"defaults.py": "what a new project starts with"},
}
"""More names, each with its reason."""


def names(service: Path) -> set[str]:
    found = (path for path in service.iterdir() if path.is_file() or any(path.rglob("*.py")))
    return {path.name for path in found}


@pytest.mark.parametrize(
    "service", sorted(path.name for path in SERVICES.iterdir() if (path / "__init__.py").exists())
)
def test_a_service_has_no_other_files(service: str) -> None:
    found = names(SERVICES / service)
    assert found >= REQUIRED
    usual = {name for name in found if name in USUAL or name.removesuffix(".py") in USUAL}
    assert found - usual == set(OTHERS.get(service, {}))


def test_a_folder_has_three_files_or_more() -> None:
    folders = [path for path in SERVICES.glob("*/*/") if any(path.rglob("*.py"))]
    assert folders
    small = [path for path in folders if len(list(path.rglob("*.py"))) < 3]
    assert not small, f"fold these into one file each: {small}"


def test_no_file_is_longer_than_400_lines() -> None:
    files = [path for path in SERVICES.parent.rglob("*.py") if "messages" not in path.parts]
    assert len(files) > 100
    long = {str(path): count for path in files if (count := len(path.read_text().splitlines())) > 400}
    assert not long, f"a file answers one question; divide these: {long}"


def test_every_function_fits_a_screen() -> None:
    files = [path for path in SERVICES.parent.rglob("*.py") if "messages" not in path.parts]
    sizes = {
        f"{path}:{node.name}": (node.end_lineno or 0) - node.lineno + 1
        for path in files
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert len(sizes) > 5_000
    assert {name: lines for name, lines in sizes.items() if lines > 60} == {}
