"""The workloads of inference: plain views in, Kubernetes objects out. Pure.

A replica is a pod that runs the model server (vLLM) from the shared root, with its model mounted read-only.
Text from tenants (names, ids) is only ever an argument in a list, never part of a shell script.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

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
from neocloud.messages.neocloud.inference.v1 import HubSource
from neocloud.services.inference import model_server_key
from neocloud.services.inference.types import MODULE_NAME, SERVER_PORT

DEPLOYMENT_LABEL = "neocloud.dev/deployment"
CONTAINER = "engine"
KEY_SECRET = "engine-key"
MODEL_PATH = "/model"
MODEL_FOLDER = "model"
"""The copy of a model in the folder that the recipe for weights of fewer bits fills."""
RECIPE_POD, CODE_PATH, RESULT_PATH = "recipe", "/code", "/out"
ADAPTERS_PATH = "/adapters"
KEY_FOLDER = "/run/neocloud/engine"
FETCH_POD = "fetch"
FETCH_PATH = "/weights"

_START = (
    f"VLLM_API_KEY=$(cat {KEY_FOLDER}/key) || exit 1; export VLLM_API_KEY;"
    f" plugin=$(mktemp -d) && mkdir $plugin/neocloud-0.dist-info || exit 1;"
    f" cp {KEY_FOLDER}/entry_points.txt $plugin/neocloud-0.dist-info/ || exit 1;"
    f' export PYTHONPATH={KEY_FOLDER}:$plugin; exec "$@"'
)
"""Reads the key from a file in memory: an argument is visible to everybody on the machine, and a variable of
the pod is stored on disk."""
_FETCH = (
    "import sys; from huggingface_hub import snapshot_download; "
    "snapshot_download(sys.argv[1], revision=sys.argv[2] or None, local_dir=sys.argv[3], "
    "allow_patterns=['*.json', '*.safetensors', '*.jinja', '*.model', '*.txt'])"
)

_RUNNERS = {"EMBED": ("--runner", "pooling", "--convert", "embed"), "RERANK": ("--runner", "pooling")}
"""The options of the tasks whose answer is no text. A cross-encoder has its scoring layer already."""

KEY_MODULE_SOURCE = Path(model_server_key.__file__).read_text()
"""The middleware that checks the key inside the model server; mounted next to the key."""
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
    # The gateway keeps connections for the next request; vLLM alone ends them after 5 s.
    "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "3600",
}
"""No files are fetched from the internet and no statistics are sent to it."""


@dataclass(frozen=True)
class ModelServerView:
    """The settings with which a model server serves its model."""

    served_name: str
    context_length: int
    max_concurrency: int
    cache_gib: int
    """On a CPU. On a GPU the server uses its share of the memory."""
    gpus: int = 0
    gpu_share: float = 0.9
    max_adapters: int = 0
    adapter_rank: int = 0
    merged_mib: int = 0
    """On a CPU, the memory for weights with an adapter in them: its tokens then cost what the base's do."""
    adapted_modules: tuple[str, ...] = ()
    """The modules that adapters may change; empty: the server finds out. The names are from a model's files,
    so those that could be taken for options are left out."""
    tool_call_parser: str = ""
    reasoning_parser: str = ""
    task: str = "GENERATE"
    """The name of a DeploymentSpec.Task."""
    media_domains: tuple[str, ...] = ()
    """The hosts from which it may fetch media."""


@dataclass(frozen=True)
class ReplicaView:
    name: str
    namespace: str
    image: str
    weights: Path
    """The folder of weights, or the folder around it that the operator opened."""
    adapters: Path | None
    cpus: int
    memory_mib: int
    server: ModelServerView
    weights_path: str = ""
    """The path below `weights`; no link in it is followed."""
    gpu_type: str = ""


def server_arguments(view: ModelServerView, model_path: str, *, host: str, port: int) -> list[str]:
    """Return the command line of a model server, in a pod or in a batch job."""
    arguments = ["vllm", "serve", model_path, "--served-model-name", view.served_name]
    arguments += ["--host", host, "--port", str(port), "--load-format", "safetensors"]
    arguments += ["--max-model-len", str(view.context_length), "--max-num-seqs", str(view.max_concurrency)]
    arguments += ["--enable-prompt-tokens-details", "--disable-uvicorn-access-log"]
    arguments += ["--middleware", f"{model_server_key.MODULE}.RequireKey"]
    arguments += ["--allowed-media-domains", *(view.media_domains or (NO_MEDIA_DOMAIN,))]
    arguments += _RUNNERS.get(view.task, ())
    if view.gpus:
        arguments += ["--gpu-memory-utilization", str(view.gpu_share)]
        arguments += ["--tensor-parallel-size", str(view.gpus)] if view.gpus > 1 else []
    else:
        arguments += ["--enforce-eager"]
    if view.max_adapters:
        count = str(view.max_adapters)
        arguments += ["--enable-lora", "--max-loras", count, "--max-cpu-loras", count]
        arguments += ["--max-lora-rank", str(view.adapter_rank)]
        modules = [name for name in view.adapted_modules if MODULE_NAME.fullmatch(name)]
        if modules and not view.gpus:
            # With an adapter on the output layer, a model server on a CPU crashes at a request for the
            # log-probabilities of a prompt.
            arguments += ["--lora-target-modules", *modules]
    if view.tool_call_parser and view.task not in _RUNNERS:
        arguments += ["--enable-auto-tool-choice", "--tool-call-parser", view.tool_call_parser]
    if view.reasoning_parser and view.task not in _RUNNERS:
        arguments += ["--reasoning-parser", view.reasoning_parser]
    return arguments


def server_variables(view: ModelServerView) -> dict[str, str]:
    if view.gpus:
        return dict(SERVING_VARIABLES)
    merged = {"NEOCLOUD_MERGED_WEIGHTS_MIB": str(view.merged_mib)} if view.max_adapters else {}
    return {
        **SERVING_VARIABLES,
        **merged,
        **_cpu_variables(cache_gib=view.cache_gib),
    }


def _cpu_variables(*, cache_gib: int) -> dict[str, str]:
    return {
        "VLLM_CPU_KVCACHE_SPACE": str(cache_gib),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        # The image has no compiler, and the model server would crash when torch first compiles.
        "TORCHDYNAMO_DISABLE": "1",
    }


def foundation(name: str, deployment_name: str, key: bytes) -> list[Manifest]:
    """Return the objects that the pods need: a namespace, its network policy, and the key.

    Only this machine can reach the replicas. They cannot open connections, except to addresses that the
    operator allowed, so neither a model's code nor a request that names an address reaches others.
    """
    files = {
        "key": key,
        f"{model_server_key.MODULE}.py": KEY_MODULE_SOURCE.encode(),
        "entry_points.txt": model_server_key.ENTRY_POINTS.encode(),
    }
    return [
        namespace_object(name, deployment_name),
        NetworkPolicy(name="same-namespace-only", namespace=name, denies_egress=True),
        Secret(name=KEY_SECRET, namespace=name, contents=files),
    ]


def replica_pod(view: ReplicaView, labels: Mapping[str, str] | None = None) -> Pod:
    command = server_arguments(view.server, MODEL_PATH, host="0.0.0.0", port=SERVER_PORT)  # nosec B104
    container = Container(
        name=CONTAINER,
        image=view.image,
        image_pull_policy="Never",
        command=("/bin/sh", "-c", _START, CONTAINER),
        args=tuple(command),
        env=variables({**server_variables(view.server), "OMP_NUM_THREADS": str(view.cpus)}),
        ports=(ContainerPort(SERVER_PORT),),
        resources=limits(cpus=view.cpus, memory_mib=view.memory_mib, gpus=view.server.gpus),
        security_context=SecurityContext(allow_privilege_escalation=False),
        readiness_probe=_health(period_seconds=2, timeout_seconds=5, failures=2),
        # A model may take an hour to load. A server that answered before and stops answering is hung.
        startup_probe=_health(period_seconds=5, timeout_seconds=5, failures=720),
        liveness_probe=_health(period_seconds=10, timeout_seconds=10, failures=4),
        volume_mounts=_mounts(view),
    )
    pod = _pod(view.namespace, view.name, container, _volumes(view), labels)
    return replace(pod, gpu_type=view.gpu_type)


def fetch_objects(name: str, image: str, target: Path, hub: HubSource) -> list[Manifest]:
    """Return a pod that copies a model from the hub into the folder `target`."""
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


@dataclass(frozen=True)
class RecipeView:
    """A recipe that reads a model and leaves its result in a folder, in a pod of its own."""

    namespace: str
    label: str
    image: str
    code: Path
    """The folder of the recipes."""
    result: Path
    weights: Path
    weights_path: str
    script: str
    """The file of the recipe; its arguments begin with the folders of model and result."""
    options: tuple[str, ...]
    cpus: int
    memory_mib: int
    gpus: int = 0
    gpu_type: str = ""


def recipe_objects(view: RecipeView) -> list[Manifest]:
    """Return a pod that runs the recipe. It can open no connection."""
    device = {} if view.gpus else _cpu_variables(cache_gib=1)
    container = Container(
        name=RECIPE_POD,
        image=view.image,
        image_pull_policy="Never",
        command=("/usr/bin/python3", f"{CODE_PATH}/{view.script}"),
        args=(MODEL_PATH, RESULT_PATH, *view.options),
        env=variables(
            {
                **SERVING_VARIABLES,
                **device,
                "OMP_NUM_THREADS": str(view.cpus),
                "PYTHONDONTWRITEBYTECODE": "1",
                "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            }
        ),
        resources=limits(cpus=view.cpus, memory_mib=view.memory_mib, gpus=view.gpus),
        security_context=SecurityContext(allow_privilege_escalation=False),
        volume_mounts=(
            Mount("model", MODEL_PATH, view.weights_path or None, read_only=True),
            Mount("code", CODE_PATH, read_only=True),
            Mount("out", RESULT_PATH),
            Mount("shm", "/dev/shm"),
        ),
    )
    volumes = (
        Volume.of_host("model", str(view.weights), "Directory"),
        Volume.of_host("code", str(view.code), "Directory"),
        Volume.of_host("out", str(view.result), "Directory"),
        Volume.in_memory("shm", f"{max(256, view.memory_mib // 8)}Mi"),
    )
    pod = replace(_pod(view.namespace, RECIPE_POD, container, volumes), gpu_type=view.gpu_type)
    policy = NetworkPolicy(name="same-namespace-only", namespace=view.namespace, denies_egress=True)
    return [namespace_object(view.namespace, view.label), policy, pod]


def adapter_path(adapter_id: str) -> str:
    """Return the path of an adapter in a pod."""
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
        restart_policy="Never",  # the reconciler restarts it after a pause, and records the cause
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
