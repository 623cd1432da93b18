"""AI workloads: endpoints and jobs, which run container images on a project's subnet."""

from neocloud.core.kind import Kind
from neocloud.core.service import Service
from neocloud.services.ai.api import METHODS, without_secrets
from neocloud.services.ai.images import known_images
from neocloud.services.ai.meter import METERS
from neocloud.services.ai.reconcile import reconcilers
from neocloud.services.ai.rules import CAPACITY, FILE_REQUEST_BYTES, EndpointRules, JobRules
from neocloud.services.ai.types import (
    ENDPOINT,
    ENDPOINT_ID_PREFIX,
    JOB,
    JOB_ID_PREFIX,
    EndpointState,
    JobState,
    KnownImages,
)

_VERBS = frozenset({"Create", "Get", "GetByName", "List", "Delete"})
_PROJECT = ("nebius.iam.v1.Container",)

KINDS = (
    Kind(
        message=ENDPOINT,
        rpc="nebius.ai.v1.EndpointService",
        id_prefix=ENDPOINT_ID_PREFIX,
        permission="ai.endpoints",
        parent_kinds=_PROJECT,
        verbs=_VERBS,
        rules=EndpointRules(),
        initial_state=EndpointState.PROVISIONING,
        stopped_state=EndpointState.STOPPED,
        is_reconciled=True,
        view=without_secrets,
        larger_request_bytes=FILE_REQUEST_BYTES,
    ),
    Kind(
        message=JOB,
        rpc="nebius.ai.v1.JobService",
        id_prefix=JOB_ID_PREFIX,
        permission="ai.jobs",
        parent_kinds=_PROJECT,
        verbs=_VERBS,
        rules=JobRules(),
        initial_state=JobState.PROVISIONING,
        stopped_state=JobState.PROVISIONING,
        working_states=frozenset({JobState.STARTING, JobState.RUNNING}),
        is_reconciled=True,
        view=without_secrets,
        larger_request_bytes=FILE_REQUEST_BYTES,
    ),
)

SERVICE = Service(
    name="ai",
    kinds=KINDS,
    methods=METHODS,
    reconcilers=reconcilers,
    meters=METERS,
    capacity=CAPACITY,
    provides={KnownImages: lambda dependencies: known_images(dependencies.settings)},
)

__all__ = ["SERVICE"]
