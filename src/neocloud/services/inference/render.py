"""Which workloads inference needs: plain views in, Kubernetes objects out. Pure.

A replica is a pod that runs the engine from the shared root, with its model read-only before it. What
tenants wrote (names, ids) only ever is an argument in a list, never part of a shell's text.
"""

import base64
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from neocloud.engines.base import KubernetesObject
from neocloud.services.inference import engine_key
from neocloud.services.inference.resources import ENGINE_PORT, MODULE_NAME

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

KEY_MODULE_SOURCE = Path(engine_key.__file__).read_text()
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
"""Nothing is asked of the internet and nothing told to it."""


@dataclass(frozen=True)
class EngineView:
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
    engine: EngineView
    weights_path: str = ""
    """Below `weights`; the engine follows no link there."""


def engine_arguments(view: EngineView, model_path: str, *, host: str, port: int) -> list[str]:
    """The engine's command line; also what a batch job of a cluster runs."""
    words = ["vllm", "serve", model_path, "--served-model-name", view.served_name]
    words += ["--host", host, "--port", str(port), "--load-format", "safetensors"]
    words += ["--max-model-len", str(view.context_length), "--max-num-seqs", str(view.max_concurrency)]
    words += ["--enable-prompt-tokens-details", "--disable-uvicorn-access-log"]
    words += ["--middleware", f"{engine_key.MODULE}.RequireKey"]
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


def engine_variables(view: EngineView) -> dict[str, str]:
    if view.gpus:
        return dict(SERVING_VARIABLES)
    return {
        **SERVING_VARIABLES,
        "VLLM_CPU_KVCACHE_SPACE": str(view.cache_gib),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        # The image has no compiler; what torch compiles at its first use would kill the engine.
        "TORCHDYNAMO_DISABLE": "1",
    }


def foundation(name: str, deployment_name: str, key: bytes) -> list[KubernetesObject]:
    """What must be there before the first pod: a border and the key.

    Only this machine reaches the replicas. They begin no connection: a model's code, or a request that names
    an address to fetch from, reaches what the operator has opened and nothing else.
    """
    same_namespace = [{"podSelector": {}}]
    border = {
        "podSelector": {},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": same_namespace}],
        "egress": [{"to": same_namespace}],
    }
    return [
        namespace_object(name, deployment_name),
        _object("networking.k8s.io/v1", "NetworkPolicy", name, "same-namespace-only", spec=border),
        _object("v1", "Secret", name, KEY_SECRET, type="Opaque", data=_engine_files(key)),
    ]


def _engine_files(key: bytes) -> dict[str, str]:
    contents = {"key": key, f"{engine_key.MODULE}.py": KEY_MODULE_SOURCE.encode()}
    return {name: base64.b64encode(content).decode() for name, content in contents.items()}


def replica_pod(view: ReplicaView) -> KubernetesObject:
    cpus = str(view.cpus)
    limits = {"cpu": cpus, "memory": f"{view.memory_mib}Mi"}
    if view.engine.gpus:
        limits["nvidia.com/gpu"] = str(view.engine.gpus)
    variables = {**engine_variables(view.engine), "OMP_NUM_THREADS": cpus}
    health = {"httpGet": {"path": "/health", "port": ENGINE_PORT}}
    arguments = engine_arguments(view.engine, MODEL_PATH, host="0.0.0.0", port=ENGINE_PORT)  # nosec B104
    container = {
        "name": CONTAINER,
        "image": view.image,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", _START, CONTAINER],
        "args": arguments,
        "env": [{"name": name, "value": value} for name, value in variables.items()],
        "ports": [{"containerPort": ENGINE_PORT}],
        "resources": {"limits": limits},
        "securityContext": {"allowPrivilegeEscalation": False},
        "readinessProbe": {**health, "periodSeconds": 2, "timeoutSeconds": 5, "failureThreshold": 2},
        # A model may take an hour to load; whoever answered once and then falls silent is hung.
        "startupProbe": {**health, "periodSeconds": 5, "timeoutSeconds": 5, "failureThreshold": 720},
        "livenessProbe": {**health, "periodSeconds": 10, "timeoutSeconds": 10, "failureThreshold": 4},
        "volumeMounts": _mounts(view),
    }
    return _pod(view.namespace, view.name, container, _volumes(view))


def fetch_objects(name: str, image: str, target: Path, hub: Any) -> list[KubernetesObject]:
    """A pod that copies a model from the hub into the folder `target`."""
    container = {
        "name": FETCH_POD,
        "image": image,
        "imagePullPolicy": "Never",
        "command": ["/usr/bin/python3", "-c", _FETCH],
        "args": [hub.id, hub.revision, FETCH_PATH],
        "env": [{"name": "HOME", "value": "/tmp"}, {"name": "HF_HUB_DISABLE_TELEMETRY", "value": "1"}],
        "securityContext": {"allowPrivilegeEscalation": False},
        "volumeMounts": [{"name": "weights", "mountPath": FETCH_PATH}],
    }
    volumes = [{"name": "weights", "hostPath": {"path": str(target), "type": "Directory"}}]
    return [namespace_object(name, name), _pod(name, FETCH_POD, container, volumes)]


def adapter_path(adapter_id: str) -> str:
    """Where the engine finds an adapter."""
    return str(PurePosixPath(ADAPTERS_PATH) / adapter_id)


def namespace_object(name: str, label: str) -> KubernetesObject:
    metadata = {"name": name, "labels": {DEPLOYMENT_LABEL: label}}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}


def _object(version: str, kind: str, namespace: str, name: str, **rest: Any) -> KubernetesObject:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": namespace}, **rest}


def _pod(
    namespace: str, name: str, container: dict[str, Any], volumes: list[dict[str, Any]]
) -> KubernetesObject:
    spec = {
        "hostname": name,
        "restartPolicy": "Never",  # the reconciler starts it anew, with pauses and a word about why
        "terminationGracePeriodSeconds": 10,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "containers": [container],
        "volumes": volumes,
    }
    return _object("v1", "Pod", namespace, name, spec=spec)


def _mounts(view: ReplicaView) -> list[dict[str, Any]]:
    path = {"subPath": view.weights_path} if view.weights_path else {}
    mounts = [
        {"name": "model", "mountPath": MODEL_PATH, **path, "readOnly": True},
        {"name": "key", "mountPath": KEY_FOLDER, "readOnly": True},
        {"name": "shm", "mountPath": "/dev/shm"},
    ]
    if view.adapters:
        mounts.append({"name": "adapters", "mountPath": ADAPTERS_PATH, "readOnly": True})
    return mounts


def _volumes(view: ReplicaView) -> list[dict[str, Any]]:
    shared_mib = max(256, view.memory_mib // 8)
    volumes: list[dict[str, Any]] = [
        {"name": "model", "hostPath": {"path": str(view.weights), "type": "Directory"}},
        {"name": "key", "secret": {"secretName": KEY_SECRET, "defaultMode": 0o400}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{shared_mib}Mi"}},
    ]
    if view.adapters:
        volumes.append({"name": "adapters", "hostPath": {"path": str(view.adapters), "type": "Directory"}})
    return volumes
