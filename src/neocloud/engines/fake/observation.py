"""What the fake engine says of a pod. Pure."""

from collections.abc import Callable

from neocloud.engines.base import ObservedPod, PodPhase
from neocloud.engines.fake.world import ContainerState, FakeContainer, FakePod


def observed_pod(pod: FakePod, answers: Callable[[FakePod, FakeContainer], bool]) -> ObservedPod:
    """`answers` asks a container's readiness probe."""
    starts = [container.started_at for container in pod.containers if container.started_at]
    running = all(container.is_running for container in pod.containers)
    gone = [c for c in pod.containers if c.state is ContainerState.EXITED]
    return ObservedPod(
        reference=pod.reference,
        phase=_phase(pod),
        ready=running and all(answers(pod, container) for container in pod.containers),
        ip=pod.ip,
        labels=dict(pod.manifest.labels),
        restart_count=sum(container.restart_count for container in pod.containers),
        started_at=min(starts) if starts else None,
        message="; ".join(f"{c.name} ended with code {c.exit_code}" for c in gone),
    )


def _phase(pod: FakePod) -> PodPhase:
    if any(container.is_running for container in pod.containers):
        return PodPhase.RUNNING
    if any(container.state is ContainerState.CREATED for container in pod.containers):
        return PodPhase.PENDING
    failed = any(container.exit_code for container in pod.containers)
    if pod.policy == "Always" or (pod.policy == "OnFailure" and failed):
        return PodPhase.PENDING
    return PodPhase.FAILED if failed else PodPhase.SUCCEEDED
