"""Reads what the services of a cloud have on record of the operators' own tenant, for its scorecard."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, TypedDict

from neocloud.cli.scorecard.cloud_facts import AuditFacts, ClusterFacts, GpuUseFacts, Records
from neocloud.cli.scorecard.records_reader import RecordsReader
from neocloud.client.errors import ClientError
from neocloud.client.faults import LIST as LIST_FAULTS
from neocloud.core import contract

AUDIT = "nebius.audit.v2.AuditEventService/List"
BEGINNING = "2020-01-01T00:00:00Z"
"""Before the first record of any cloud."""
OLDEST_FIRST = {"x-audit-order": "oldest-first"}
JOBS = "neocloud.slurm.v1.JobService"
NEWEST_AUDITED = 100
MOST_PROJECTS = 20
MOST_IN_PROJECT = 200
MOST_CLUSTERS = 10
"""Clusters whose first jobs are read."""
FIRST_JOBS = (1, 2, 3)
MOST_JOBS = 5
"""Jobs whose use of GPUs is read."""
NO_JOB = frozenset({"NOT_FOUND"})


class ServiceFacts(TypedDict):
    """The part of `CloudFacts` that comes from the services of the cloud."""

    projects: int
    audit: AuditFacts | None
    clusters: Sequence[ClusterFacts]
    providers: int
    gpu_use: GpuUseFacts | None
    machines: int
    networks: int
    filesystems: int
    buckets: int
    versioned: int
    serves_kubernetes: bool | None
    is_emulated: bool


def read_services(reader: RecordsReader, tenant_id: str, running: Sequence[tuple[str, str]]) -> ServiceFacts:
    """Return what the services tell. `running` are jobs on nodes: ids of their clusters, and their own."""
    of_tenant = {"parent_id": tenant_id}
    found = reader.list(Records.PROJECTS, "nebius.iam.v2.ProjectService/List", of_tenant, MOST_PROJECTS)
    projects = [each.metadata.id for each in found]

    def in_projects(records: Records, path: str) -> list[Any]:
        items: list[Any] = []
        for project_id in projects:
            if records not in reader.unread:
                items += reader.list(records, path, {"parent_id": project_id}, MOST_IN_PROJECT)
        return items

    clusters = in_projects(Records.CLUSTERS, "neocloud.slurm.v1.ClusterService/List")
    buckets = in_projects(Records.BUCKETS, "nebius.storage.v1.BucketService/List")
    own = {each.metadata.id for each in clusters}
    jobs = [(cluster, job) for cluster, job in running if cluster in own]
    return ServiceFacts(
        projects=len(projects),
        audit=reader.read(Records.AUDIT, lambda: _audit(reader, tenant_id), None),
        clusters=_clusters(reader, clusters),
        providers=len(reader.list(Records.SIGN_IN, "neocloud.iam.v1.OidcFederationService/List", of_tenant)),
        gpu_use=reader.read(Records.JOBS, lambda: _gpu_use(reader, jobs), None),
        machines=len(in_projects(Records.MACHINES, "nebius.compute.v1.InstanceService/List")),
        networks=len(in_projects(Records.NETWORKS, "nebius.vpc.v1.NetworkService/List")),
        filesystems=len(in_projects(Records.FILESYSTEMS, "nebius.compute.v1.FilesystemService/List")),
        buckets=len(buckets),
        versioned=sum(_keeps_versions(each) for each in buckets),
        serves_kubernetes=reader.read(Records.KUBERNETES, lambda: _kubernetes(reader, projects), None),
        is_emulated=_is_emulated(reader),
    )


def _audit(reader: RecordsReader, tenant_id: str) -> AuditFacts | None:
    tenant = reader.call("nebius.iam.v1.TenantService/Get", {"id": tenant_id})
    asked = {
        "parent_id": tenant_id,
        "start": BEGINNING,
        "end": datetime.now(UTC).isoformat(),
        "event_type": "CONTROL_PLANE",
        "region": tenant.status.region or tenant.spec.region,
    }
    newest = reader.call(AUDIT, {**asked, "page_size": NEWEST_AUDITED}).items
    oldest = reader.call(AUDIT, {**asked, "page_size": 1}, OLDEST_FIRST).items
    if not newest or not oldest:
        return None
    called = [each for each in newest if each.request.request_id or each.authentication.authenticated]
    lacking = {
        "who": sum(not _says_who(each) for each in called),
        "from where": sum(not each.request.client_ip for each in called),
        "on what": sum(not (each.resource.metadata.id or each.resource.hierarchy) for each in called),
        "which result": sum(not each.status for each in called),
    }
    return AuditFacts(
        newest=max(contract.to_datetime(each.time) for each in newest),
        oldest=contract.to_datetime(oldest[0].time),
        looked_at=len(newest),
        by_cloud=len(newest) - len(called),
        lacking=lacking,
    )


def _says_who(event: Any) -> bool:
    """Return whether the event names its caller; a refused call without a sign-in has none."""
    subject = event.authentication.subject
    is_refused = not event.authentication.authenticated and not event.authorization.authorized
    return is_refused or bool(subject.service_account_id or subject.tenant_user_id)


def _clusters(reader: RecordsReader, found: Sequence[Any]) -> list[ClusterFacts]:
    if len(found) > MOST_CLUSTERS:
        reader.cut.add(Records.JOBS)
    nothing: datetime | None = None
    ended = [
        reader.read(Records.JOBS, lambda each=each: _first_job_ended_at(reader, each), nothing)
        for each in found[:MOST_CLUSTERS]
    ]
    ended += [None] * (len(found) - len(ended))
    return [
        ClusterFacts(
            id=each.metadata.id,
            created_at=contract.to_datetime(each.metadata.created_at),
            is_ready=contract.enum_name(each.status, "state") == "READY",
            users=len(each.spec.users),
            has_groups=bool(each.spec.group_ids),
            has_topology=each.spec.HasField("topology"),
            first_job_ended_at=at,
        )
        for each, at in zip(found, ended, strict=True)
    ]


def _first_job_ended_at(reader: RecordsReader, cluster: Any) -> datetime | None:
    """Return when the first job that completed did; one of a restored cluster may be older than it."""
    created_at = contract.to_datetime(cluster.metadata.created_at)
    for number in FIRST_JOBS:
        try:
            job = reader.call(f"{JOBS}/Get", {"cluster_id": cluster.metadata.id, "job_id": number})
        except ClientError as error:
            if error.code in NO_JOB:
                continue
            raise
        ended_at = at_of(job, "finished_at")
        if job.state == "COMPLETED" and ended_at is not None and ended_at >= created_at:
            return ended_at
    return None


def _gpu_use(reader: RecordsReader, running: Sequence[tuple[str, str]]) -> GpuUseFacts:
    jobs = sorted({(cluster, int(job)) for cluster, job in running if job.isascii() and job.isdigit()})
    reports: list[Any] = []
    for cluster, job in jobs[:MOST_JOBS]:
        try:
            reports.append(reader.call(f"{JOBS}/Report", {"cluster_id": cluster, "job_id": job}))
        except ClientError as error:
            if error.code not in NO_JOB:
                raise
    uses = [report.runs[-1].gpu_use for report in reports if report.runs and report.runs[-1].gpus]
    known = [use for use in uses if use.HasField("utilisation_percent")]
    return GpuUseFacts(len(uses), len(known), sum(use.is_simulated for use in known))


def _keeps_versions(bucket: Any) -> bool:
    policy = bucket.spec.DESCRIPTOR.fields_by_name["versioning_policy"].enum_type
    return policy.values_by_number[bucket.spec.versioning_policy].name == "ENABLED"


def _kubernetes(reader: RecordsReader, projects: Sequence[str]) -> bool | None:
    for project_id in projects[:1]:
        try:
            reader.call("nebius.mk8s.v1.ClusterService/List", {"parent_id": project_id, "page_size": 1})
        except ClientError as error:
            if error.code == "UNIMPLEMENTED":
                return False
            raise
        return True
    return None


def _is_emulated(reader: RecordsReader) -> bool:
    """An emulator alone knows of injected faults; who may not list them is refused."""
    try:
        reader.call(LIST_FAULTS, {})
    except ClientError as error:
        return error.code == "PERMISSION_DENIED"
    return True


def at_of(message: Any, field: str) -> datetime | None:
    return contract.to_datetime(getattr(message, field)) if message.HasField(field) else None
