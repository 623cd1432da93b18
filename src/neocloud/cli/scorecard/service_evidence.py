"""Evidence for criteria of ClusterMAX from the services of a cloud: audit log, borders, orchestration.

That something is configured is not proof that it holds: without a record of a try it is `not_run`.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta

from neocloud.cli.scorecard.cloud_facts import CloudFacts, Found, Records
from neocloud.cli.scorecard.scorecard import Score

AUDITED = timedelta(days=90)
"""ClusterMAX on audit logs."""
DAY = timedelta(days=1)
KUBERNETES = {
    None: "it is unknown whether Kubernetes is served",
    False: "Kubernetes is not served",
    True: "Kubernetes is listed, and was not tried",
}


def of_services(facts: CloudFacts, now: datetime) -> Iterator[Found]:
    yield from _of_audit(facts, now)
    yield from _of_borders(facts, now)
    yield from _of_orchestration(facts, now)
    if facts.buckets:
        text = f"{facts.versioned} of {facts.buckets} buckets keep versions of objects; no record shows that"
        yield "STO-4", Score.NOT_RUN, f"{text} a restore was tried", None


def _of_audit(facts: CloudFacts, now: datetime) -> Iterator[Found]:
    audit = facts.audit
    if audit is None:
        return
    age = now - audit.oldest
    lacking = ", ".join(f"{count} {what}" for what, count in audit.lacking.items() if count)
    text = f"the oldest record of the operators' tenant is {age // DAY} days old; of the newest"
    text += f" {audit.looked_at}, " + (f"these lack: {lacking}" if lacking else "all say who, from where, on")
    text += "" if lacking else " what and with which result"
    text += f"; {audit.by_cloud} are the cloud's own" if audit.by_cloud else ""
    is_whole = age >= AUDITED and not lacking and audit.looked_at > audit.by_cloud
    text += "" if age >= AUDITED else "; that 90 days are kept is not shown yet"
    yield "SEC-8", Score.PASS if is_whole else Score.PARTIAL, text, audit.newest


def _of_borders(facts: CloudFacts, now: datetime) -> Iterator[Found]:
    own = {cluster.id for cluster in facts.clusters}
    watched = {node.cluster_id for node in facts.nodes if node.cluster_id}
    knows_own = not {Records.PROJECTS, Records.CLUSTERS} & (facts.unread.keys() | facts.cut)
    others = len(watched - own) if knows_own else 0
    hosts = sum(node.is_host for node in facts.nodes)
    text = f"{facts.machines} machines of the operators' tenant are virtual machines; workers of"
    text += f" {len(own | watched)} Slurm clusters are containers"
    if own and others and hosts <= 1:
        text += f", on one host with those of other tenants ({others} clusters): no virtual machine between"
        yield "SEC-3", Score.FAIL, text, now
    elif own or watched or facts.machines:
        text += "; no record shows that somebody tried the border between tenants"
        yield "SEC-3", Score.NOT_RUN, text, None
    if facts.networks:
        text = f"{facts.networks} networks of {facts.projects} projects are configured; no record shows that"
        yield "SEC-4", Score.NOT_RUN, f"{text} packets between tenants were tried; no fabric is known", None


def _of_orchestration(facts: CloudFacts, now: datetime) -> Iterator[Found]:
    if facts.serves_kubernetes is False:
        yield "ORC-3", Score.FAIL, f"{KUBERNETES[False]}: the API answers UNIMPLEMENTED", now
    elif facts.serves_kubernetes:
        text = "Kubernetes clusters are listed; no record shows storage, operators, scheduling or ingress"
        yield "ORC-3", Score.NOT_RUN, text, None
    clusters = facts.clusters
    if not clusters:
        return
    ready = sum(each.is_ready for each in clusters)
    shared = sum(bool(each.users or each.has_groups) for each in clusters)
    text = f"{ready} of {len(clusters)} Slurm clusters are ready, {shared} with users besides root;"
    providers = "an unknown number of" if Records.SIGN_IN in facts.unread else facts.providers
    text += f" {providers} providers of single sign-on are configured; "
    text += KUBERNETES[facts.serves_kubernetes]
    text += "; ssh and accounting were not tried"
    yield "ORC-1", Score.PARTIAL if ready else Score.FAIL, text, now
