"""Sample rows for tests of stores."""

from datetime import UTC, datetime
from typing import Any

from neocloud.core.store import OperationRow, Resource

NOW = datetime(2026, 1, 1, 0, 0, 0, 123456, tzinfo=UTC)
KIND = "neocloud.slurm.v1.Cluster"
PARENT = "project-e00a"


def resource(id: str = "slurmcluster-e00a", **values: Any) -> Resource:
    given = {"kind": KIND, "parent_id": PARENT, "name": "bank", "created_at": NOW, "updated_at": NOW}
    return Resource(id=id, **{**given, **values})


def operation(id: str = "operation-e00a", **values: Any) -> OperationRow:
    given = {
        "resource_id": "slurmcluster-e00a",
        "resource_kind": KIND,
        "parent_id": PARENT,
        "method": "neocloud.slurm.v1.ClusterService/Create",
        "description": "Create cluster bank",
        "created_by": "serviceaccount-e00a",
        "created_at": NOW,
        "resource_version": 1,
    }
    return OperationRow(id=id, **{**given, **values})
