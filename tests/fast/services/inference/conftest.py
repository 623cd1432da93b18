"""A backend of replicas on a scripted Slurm cluster."""

from pathlib import Path
from typing import Any, cast

import pytest
from neocloud.messages.neocloud.inference.v1 import Deployment, Model

from neocloud.services.inference.public import ModelFolders
from neocloud.services.inference.reconcile.scope import DeploymentScope
from neocloud.services.inference.reconcile.slurm_backend import SlurmBackend
from neocloud.services.inference.rules.memory import MemoryPlan
from tests.fast.services.inference.cloud import write_model
from tests.fast.services.inference.scripted_slurm import (
    CLUSTER,
    DEPLOYMENT,
    KEY,
    PlainContext,
    PlainStore,
    ScriptedJobs,
)


@pytest.fixture
def jobs() -> ScriptedJobs:
    return ScriptedJobs()


@pytest.fixture
def well() -> set[str]:
    """Addresses whose engines say that they are well."""
    return set()


@pytest.fixture
def store() -> PlainStore:
    return PlainStore()


@pytest.fixture
def backend(jobs: ScriptedJobs, well: set[str], store: PlainStore, tmp_path: Path) -> SlurmBackend:
    async def probe(address: str, key: str) -> bool:
        return address in well and key == KEY.decode()

    scripted: Any = jobs
    return SlurmBackend(
        scripted, cast(Any, store), ModelFolders(tmp_path / "models", (tmp_path,)), tmp_path, probe
    )


@pytest.fixture
def scope(tmp_path: Path) -> DeploymentScope:
    deployment, model = Deployment(), Model()
    deployment.metadata.id = DEPLOYMENT
    deployment.spec.slurm_cluster_id = CLUSTER
    deployment.spec.max_adapters = 2
    resources = deployment.spec.slurm_resources
    resources.cpus, resources.memory_gibibytes, resources.partition = 2, 4, "main"
    model.metadata.name = "bank; rm -rf /"  # a name that no rule would let through, to see where it goes
    model.spec.source.folder = str(write_model(tmp_path / "weights"))
    plan = MemoryPlan(True, "enough", 2048, 16)
    context: Any = PlainContext()
    return DeploymentScope(context, deployment, model, plan=plan, desired=2, server_key=KEY)
