"""The pod of a replica: its command line as a list, its key from memory, its folders read-only."""

from dataclasses import replace
from pathlib import Path

from neocloud.messages.neocloud.inference.v1 import ModelSpec

from neocloud.services.inference.render import (
    ModelServerView,
    ReplicaView,
    fetch_objects,
    foundation,
    replica_pod,
    server_arguments,
    server_variables,
)

SERVER = ModelServerView(
    served_name='bank"; rm -rf /',
    context_length=2048,
    max_concurrency=16,
    cache_gib=1,
    max_adapters=4,
    adapter_rank=64,
    tool_call_parser="hermes",
)
REPLICA = ReplicaView(
    name="replica-0",
    namespace="inferencedeployment-e00one",
    image="localhost/neocloud/jail:1",
    weights=Path("/srv/models/bank"),
    adapters=Path("/home/models/inferencedeployment-e00one"),
    cpus=2,
    memory_mib=4096,
    server=SERVER,
)


def test_the_command_line_on_a_cpu() -> None:
    words = server_arguments(SERVER, "/model", host="0.0.0.0", port=8000)
    assert words[:5] == ["vllm", "serve", "/model", "--served-model-name", 'bank"; rm -rf /']
    line = " ".join(words[5:])
    assert line == (
        "--host 0.0.0.0 --port 8000 --load-format safetensors --max-model-len 2048 --max-num-seqs 16"
        " --enable-prompt-tokens-details --disable-uvicorn-access-log"
        " --middleware neocloud_engine_key.RequireKey --allowed-media-domains media.invalid"
        " --enforce-eager --enable-lora"
        " --max-loras 4 --max-cpu-loras 4 --max-lora-rank 64 --enable-auto-tool-choice"
        " --tool-call-parser hermes"
    )
    assert server_variables(SERVER)["VLLM_CPU_KVCACHE_SPACE"] == "1"
    assert server_variables(SERVER)["TORCHDYNAMO_DISABLE"] == "1"


def test_the_command_line_on_gpus() -> None:
    view = replace(SERVER, gpus=2, max_adapters=0, tool_call_parser="", reasoning_parser="qwen3")
    line = " ".join(server_arguments(view, "/model", host="0.0.0.0", port=8000)[10:])
    assert "--gpu-memory-utilization 0.9 --tensor-parallel-size 2" in line and "--enforce-eager" not in line
    assert "lora" not in line and line.endswith("--reasoning-parser qwen3")
    assert "VLLM_CPU_KVCACHE_SPACE" not in server_variables(view)


def test_adapters_change_no_words_on_a_cpu() -> None:
    view = replace(SERVER, adapted_modules=("k_proj", "q_proj"))
    words = server_arguments(view, "/model", host="0.0.0.0", port=8000)
    place = words.index("--lora-target-modules")
    assert words[place + 1 : place + 4] == ["k_proj", "q_proj", "--enable-auto-tool-choice"]
    on_gpu = server_arguments(replace(view, gpus=1), "/model", host="0.0.0.0", port=8000)
    assert "--lora-target-modules" not in on_gpu


def test_adapters_have_the_spare_memory_of_a_cpu_for_merged_weights() -> None:
    view = replace(SERVER, merged_mib=700)
    assert server_variables(view)["NEOCLOUD_MERGED_WEIGHTS_MIB"] == "700"
    for without in (replace(view, max_adapters=0), replace(view, gpus=1)):
        assert "NEOCLOUD_MERGED_WEIGHTS_MIB" not in server_variables(without)


def test_a_model_server_keeps_the_connections_that_the_gateway_keeps() -> None:
    assert int(server_variables(SERVER)["VLLM_HTTP_TIMEOUT_KEEP_ALIVE"]) >= 3600


def test_the_command_line_for_embeddings() -> None:
    view = replace(SERVER, max_adapters=0, task="EMBED", reasoning_parser="qwen3")
    line = " ".join(server_arguments(view, "/model", host="0.0.0.0", port=8000))
    assert "--runner pooling --convert embed" in line
    assert "tool" not in line and "reasoning" not in line


def test_a_replica_is_a_pod_that_the_engine_takes() -> None:
    pod = replica_pod(REPLICA).to_dict()
    (container,) = pod["spec"]["containers"]
    assert container["command"][:2] == ["/bin/sh", "-c"] and "bank" not in container["command"][2]
    assert container["args"][0] == "vllm"
    assert container["resources"]["limits"] == {"cpu": "2", "memory": "4096Mi"}
    assert {mount["mountPath"] for mount in container["volumeMounts"] if mount.get("readOnly")} == {
        "/model",
        "/adapters",
        "/run/neocloud/engine",
    }
    assert not any("hostPort" in port for port in container["ports"])
    assert container["livenessProbe"]["httpGet"] == {"path": "/health", "port": 8000}
    assert pod["spec"]["restartPolicy"] == "Never"


def test_the_key_is_in_no_pod() -> None:
    manifests = foundation("inferencedeployment-e00one", "bank", b"secret-of-the-engine")
    objects = [each.to_dict() for each in manifests]
    assert [each["kind"] for each in objects] == ["Namespace", "NetworkPolicy", "Secret"]
    assert objects[2]["data"]["key"] == "c2VjcmV0LW9mLXRoZS1lbmdpbmU="
    assert objects[2]["data"].keys() == {"key", "neocloud_engine_key.py", "entry_points.txt"}
    assert "secret-of" not in str(replica_pod(REPLICA))


def test_a_replica_on_gpus_asks_for_them() -> None:
    pod = replica_pod(replace(REPLICA, adapters=None, server=replace(SERVER, gpus=2)))
    assert pod.containers[0].limits["nvidia.com/gpu"] == "2"


def test_fetching_from_a_hub_says_the_id_as_an_argument() -> None:
    spec = ModelSpec()
    spec.source.hub.id, spec.source.hub.revision = "Qwen/Qwen3-0.6B", "main"
    _, pod = fetch_objects("inferencemodel-e00one", "jail", Path("/home/models/x"), spec.source.hub)
    assert pod.to_dict()["spec"]["containers"][0]["args"] == ["Qwen/Qwen3-0.6B", "main", "/weights"]


def test_the_command_line_for_rankings() -> None:
    words = server_arguments(replace(SERVER, max_adapters=0, task="RERANK"), "/model", host="::", port=8000)
    assert words[words.index("--runner") + 1] == "pooling" and "--convert" not in words
    assert "--enable-auto-tool-choice" not in words
