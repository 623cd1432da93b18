"""Which workloads inference needs: plain views in, Kubernetes objects out. Pure.

A replica is a pod that runs the engine from the shared root, with its model read-only before it. What
tenants wrote (names, ids) only ever is an argument in a list, never part of a shell's text.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from neocloud.engines.manifest import (
    Container,
    ContainerPort,
    HttpGet,
    Manifest,
    Mount,
    Namespace,
    NetworkPolicy,
    Pod,
    Probe,
    Secret,
    SecurityContext,
    Volume,
    limits,
    variables,
)
from neocloud.services.inference import model_server_key
from neocloud.services.inference.types import MODULE_NAME, SERVER_PORT

DEPLOYMENT_LABEL = "neocloud.dev/deployment"
CONTAINER = "engine"
KEY_SECRET = "engine-key"
MODEL_PATH = "/model"
ADAPTERS_PATH = "/adapters"
KEY_FOLDER = "/run/neocloud/engine"
FETCH_POD = "fetch"
FETCH_PATH = "/weights"

_START = (
    f"VLLM_API_KEY=$(cat {KEY_FOLDER}/key) || exit 1; export VLLM_API_KEY;"
    f' export PYTHONPATH={KEY_FOLDER}; exec "$@"'
)
"""The key is read from a file in memory: as an argument, everybody on the machine could see it; as a
variable of the pod it would lie on the disk."""
_FETCH = (
    "import sys; from huggingface_hub import snapshot_download; "
    "snapshot_download(sys.argv[1], revision=sys.argv[2] or None, local_dir=sys.argv[3], "
    "allow_patterns=['*.json', '*.safetensors', '*.jinja', '*.model', '*.txt'])"
)

KEY_MODULE_SOURCE = Path(model_server_key.__file__).read_text()
"""What asks for the key inside of the engine; laid beside the key."""
NO_MEDIA_DOMAIN = "media.invalid"
"""A host that cannot exist (RFC 2606): vLLM takes an empty list for "all hosts"."""
SERVING_VARIABLES = {
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HOME": "/tmp",
    "VLLM_MEDIA_URL_ALLOW_REDIRECTS": "0",
}
"""Nothing is asked of the internet and nothing reported to it."""


@dataclass(frozen=True)
class ModelServerView:
    """How the engine is to serve."""

    served_name: str
    context_length: int
    max_concurrency: int
    cache_gib: int
    """On a CPU; a GPU's memory is used as far as allowed."""
    gpus: int = 0
    gpu_share: float = 0.9
    max_adapters: int = 0
    adapter_rank: int = 0
    adapted_modules: tuple[str, ...] = ()
    """All that adapters may change; empty: the engine finds out. Names out of a model's files: those that the
    engine could take for options are left out."""
    tool_call_parser: str = ""
    reasoning_parser: str = ""
    embeds: bool = False
    media_domains: tuple[str, ...] = ()
    """Hosts that it may fetch media from."""


@dataclass(frozen=True)
class ReplicaView:
    name: str
    namespace: str
    image: str
    weights: Path
    """Its own folder, or one that the operator opened and that it lies in."""
    adapters: Path | None
    cpus: int
    memory_mib: int
    engine: ModelServerView
    weights_path: str = ""
    """Below `weights`; the engine follows no link there."""


def server_arguments(view: ModelServerView, model_path: str, *, host: str, port: int) -> list[str]:
    """The engine's command line; also what a batch job of a cluster runs."""
    words = ["vllm", "serve", model_path, "--served-model-name", view.served_name]
    words += ["--host", host, "--port", str(port), "--load-format", "safetensors"]
    words += ["--max-model-len", str(view.context_length), "--max-num-seqs", str(view.max_concurrency)]
    words += ["--enable-prompt-tokens-details", "--disable-uvicorn-access-log"]
    words += ["--middleware", f"{model_server_key.MODULE}.RequireKey"]
    words += ["--allowed-media-domains", *(view.media_domains or (NO_MEDIA_DOMAIN,))]
    words += ["--runner", "pooling", "--convert", "embed"] if view.embeds else []
    if view.gpus:
        words += ["--gpu-memory-utilization", str(view.gpu_share)]
        words += ["--tensor-parallel-size", str(view.gpus)] if view.gpus > 1 else []
    else:
        words += ["--enforce-eager"]
    if view.max_adapters:
        count = str(view.max_adapters)
        words += ["--enable-lora", "--max-loras", count, "--max-cpu-loras", count]
        words += ["--max-lora-rank", str(view.adapter_rank)]
        modules = [name for name in view.adapted_modules if MODULE_NAME.fullmatch(name)]
        if modules and not view.gpus:
            # With an adapter's place at the output the engine on a CPU dies of whoever asks for the
            # log-probabilities of a prompt.
            words += ["--lora-target-modules", *modules]
    if view.tool_call_parser and not view.embeds:
        words += ["--enable-auto-tool-choice", "--tool-call-parser", view.tool_call_parser]
    if view.reasoning_parser and not view.embeds:
        words += ["--reasoning-parser", view.reasoning_parser]
    return words


def server_variables(view: ModelServerView) -> dict[str, str]:
    if view.gpus:
        return dict(SERVING_VARIABLES)
    return {
        **SERVING_VARIABLES,
        "VLLM_CPU_KVCACHE_SPACE": str(view.cache_gib),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        # The image has no compiler; what torch compiles at its first use would kill the engine.
        "TORCHDYNAMO_DISABLE": "1",
    }


def foundation(name: str, deployment_name: str, key: bytes) -> list[Manifest]:
    """What must be there before the first pod: a border and the key.

    Only this machine reaches the replicas. They begin no connection: a model's code, or a request that names
    an address to fetch from, reaches what the operator has opened and nothing else.
    """
    files = {"key": key, f"{model_server_key.MODULE}.py": KEY_MODULE_SOURCE.encode()}
    return [
        namespace_object(name, deployment_name),
        NetworkPolicy(name="same-namespace-only", namespace=name, denies_egress=True),
        Secret(name=KEY_SECRET, namespace=name, contents=files),
    ]


def replica_pod(view: ReplicaView, labels: Mapping[str, str] | None = None) -> Pod:
    arguments = server_arguments(view.engine, MODEL_PATH, host="0.0.0.0", port=SERVER_PORT)  # nosec B104
    container = Container(
        name=CONTAINER,
        image=view.image,
        image_pull_policy="Never",
        command=("/bin/sh", "-c", _START, CONTAINER),
        args=tuple(arguments),
        env=variables({**server_variables(view.engine), "OMP_NUM_THREADS": str(view.cpus)}),
        ports=(ContainerPort(SERVER_PORT),),
        resources=limits(cpus=view.cpus, memory_mib=view.memory_mib, gpus=view.engine.gpus),
        security_context=SecurityContext(allow_privilege_escalation=False),
        readiness_probe=_health(period_seconds=2, timeout_seconds=5, failures=2),
        # A model may take an hour to load; whoever answered once and then falls silent is hung.
        startup_probe=_health(period_seconds=5, timeout_seconds=5, failures=720),
        liveness_probe=_health(period_seconds=10, timeout_seconds=10, failures=4),
        volume_mounts=_mounts(view),
    )
    return _pod(view.namespace, view.name, container, _volumes(view), labels)


def fetch_objects(name: str, image: str, target: Path, hub: Any) -> list[Manifest]:
    """A pod that copies a model from the hub into the folder `target`."""
    container = Container(
        name=FETCH_POD,
        image=image,
        image_pull_policy="Never",
        command=("/usr/bin/python3", "-c", _FETCH),
        args=(hub.id, hub.revision, FETCH_PATH),
        env=variables({"HOME": "/tmp", "HF_HUB_DISABLE_TELEMETRY": "1"}),
        security_context=SecurityContext(allow_privilege_escalation=False),
        volume_mounts=(Mount("weights", FETCH_PATH),),
    )
    volumes = (Volume.of_host("weights", str(target), "Directory"),)
    return [namespace_object(name, name), _pod(name, FETCH_POD, container, volumes)]


def adapter_path(adapter_id: str) -> str:
    """Where the engine finds an adapter."""
    return str(PurePosixPath(ADAPTERS_PATH) / adapter_id)


def namespace_object(name: str, label: str) -> Namespace:
    return Namespace(name=name, labels={DEPLOYMENT_LABEL: label})


def _pod(
    namespace: str,
    name: str,
    container: Container,
    volumes: tuple[Volume, ...],
    labels: Mapping[str, str] | None = None,
) -> Pod:
    return Pod(
        name=name,
        namespace=namespace,
        labels=labels or {},
        hostname=name,
        restart_policy="Never",  # the reconciler starts it anew, with pauses and a word about why
        termination_grace_period_seconds=10,
        automount_service_account_token=False,
        enable_service_links=False,
        containers=(container,),
        volumes=volumes,
    )


def _health(*, period_seconds: int, timeout_seconds: int, failures: int) -> Probe:
    return Probe(
        http_get=HttpGet(SERVER_PORT, "/health"),
        period_seconds=period_seconds,
        timeout_seconds=timeout_seconds,
        failure_threshold=failures,
    )


def _mounts(view: ReplicaView) -> tuple[Mount, ...]:
    adapters = (Mount("adapters", ADAPTERS_PATH, read_only=True),) if view.adapters else ()
    return (
        Mount("model", MODEL_PATH, view.weights_path or None, read_only=True),
        Mount("key", KEY_FOLDER, read_only=True),
        Mount("shm", "/dev/shm"),
        *adapters,
    )


def _volumes(view: ReplicaView) -> tuple[Volume, ...]:
    adapters = (Volume.of_host("adapters", str(view.adapters), "Directory"),) if view.adapters else ()
    return (
        Volume.of_host("model", str(view.weights), "Directory"),
        Volume.of_secret("key", KEY_SECRET),
        Volume.in_memory("shm", f"{max(256, view.memory_mib // 8)}Mi"),
        *adapters,
    )
