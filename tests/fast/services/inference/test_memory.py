"""Fit of models, in numbers to check by hand: Qwen3-8B and Llama-3.1-8B."""

from typing import Any

import pytest
from neocloud.messages.neocloud.inference.v1 import DeploymentSpec, ModelStatus

from neocloud.services.inference.rules.memory import (
    GIB,
    ModelSize,
    ServingRequest,
    Shape,
    UnknownArchitecture,
    holds_original,
    model_size,
    plan,
    read_architecture,
    served_bytes,
)

QWEN3_8B: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "torch_dtype": "bfloat16",
}
LLAMA_3_1_8B = {
    **QWEN3_8B,
    "architectures": ["LlamaForCausalLM"],
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "head_dim": None,
    "max_position_embeddings": 131072,
}
QWEN = ModelSize(16_381_470_720, 147_456, 40_960, 2_433_024)
LLAMA = ModelSize(16_060_522_496, 131_072, 131_072)
H100 = Shape(80 * GIB, gpus=1)


def test_a_token_of_qwen3_8b_takes_144_kib() -> None:
    found = read_architecture(QWEN3_8B)
    assert found.kv_bytes_per_token == 2 * 36 * 8 * 128 * 2 == 147_456
    assert (found.context_length, found.dtype, found.layers) == (40960, "bfloat16", 36)
    each_layer = 2 * (4096 + 4096) + 2 * (4096 + 1024) + 3 * (4096 + 12288)
    assert found.adapter_bytes_per_rank == 36 * each_layer * 2


def test_a_token_of_llama_3_1_8b_takes_128_kib() -> None:
    found = read_architecture(LLAMA_3_1_8B)
    assert found.kv_bytes_per_token == 131_072 and found.context_length == 131_072


def test_latent_attention_keeps_one_vector_a_layer() -> None:
    config = {**QWEN3_8B, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "num_hidden_layers": 27}
    assert read_architecture(config).kv_bytes_per_token == 27 * (512 + 64) * 2


def test_what_reads_pictures_too_says_its_numbers_one_level_down() -> None:
    config = {"architectures": ["QwenVL"], "text_config": QWEN3_8B}
    assert read_architecture(config).kv_bytes_per_token == 147_456


@pytest.mark.parametrize("missing", ["architectures", "num_hidden_layers", "max_position_embeddings"])
def test_what_config_json_does_not_say_is_named(missing: str) -> None:
    config = {name: value for name, value in QWEN3_8B.items() if name != missing}
    with pytest.raises(UnknownArchitecture, match=missing):
        read_architecture(config)


def test_qwen3_8b_on_an_h100() -> None:
    found = plan(QWEN, H100, ServingRequest())
    assert found.fits and found.context_length == 40_960 and found.max_concurrency == 256
    assert found.sentence == (
        "15.3 GiB of weights + 2 GiB for the model server + 5.6 GiB for one request of 40,960 tokens"
        " at 147,456 bytes each = 22.9 GiB of 72 GiB (90% of 80 GiB of 1 GPU); enough for 9 such requests"
        " at a time"
    )


def test_llama_3_1_8b_on_an_l40s_has_room_for_one_long_request() -> None:
    found = plan(LLAMA, Shape(48 * GIB, gpus=1), ServingRequest(is_fast=True))
    assert "= 33 GiB of 43.2 GiB" in found.sentence and found.sentence.endswith("1 such request at a time")
    assert found.max_concurrency == 32


def test_a_context_that_is_left_open_is_made_to_fit() -> None:
    found = plan(LLAMA, Shape(32 * GIB), ServingRequest())
    assert found.fits and found.context_length == 122_880
    assert found.cache_bytes == 15 * GIB


def test_a_context_that_was_asked_for_is_not_made_smaller() -> None:
    found = plan(LLAMA, Shape(32 * GIB), ServingRequest(context_length=131_072))
    assert not found.fits and found.sentence.endswith("= 33 GiB, and there are 32 GiB of memory")


def test_weights_that_are_too_large_do_not_fit_whatever_the_context() -> None:
    found = plan(QWEN, Shape(16 * GIB, gpus=1), ServingRequest())
    assert not found.fits and "14.4 GiB (90% of 16 GiB of 1 GPU)" in found.sentence


def test_adapters_have_their_room() -> None:
    found = plan(QWEN, H100, ServingRequest(max_adapters=8, adapter_rank=64))
    assert "1.2 GiB for 8 adapters of rank 64" in found.sentence


def test_the_cache_of_a_cpu_is_whole_gibibytes_and_never_more_than_there_is() -> None:
    tiny = ModelSize(4_614_488, 1024, 2048)
    found = plan(tiny, Shape(4 * GIB), ServingRequest())
    assert (found.cache_bytes, found.max_concurrency) == (GIB, 16)


def test_what_weights_and_a_full_cache_leave_is_spare() -> None:
    tiny = ModelSize(4_614_488, 1024, 2048)
    assert plan(tiny, Shape(4 * GIB), ServingRequest()).spare_bytes == GIB - 4_614_488
    assert plan(tiny, Shape(3 * GIB), ServingRequest()).spare_bytes == 0  # it does not fit


def test_32_bit_weights_are_served_in_16() -> None:
    assert served_bytes(1_000, 4_000, "float32") == 2_000
    assert served_bytes(1_000, 2_000, "bfloat16") == 2_000


def test_weights_of_fewer_bits_take_less_as_far_as_they_are_in_layers() -> None:
    status = ModelStatus(parameters=1_000, layer_parameters=800, size_bytes=2_000, dtype="bfloat16")
    kinds = (DeploymentSpec.ORIGINAL, DeploymentSpec.INT8, DeploymentSpec.INT4)
    sizes = [model_size(status, weights).weights_bytes for weights in kinds]
    assert sizes == [2_000, 400 + 810, 400 + 470]
    older = ModelStatus(parameters=1_000, size_bytes=2_000, dtype="bfloat16")
    assert model_size(older, DeploymentSpec.INT8).weights_bytes == 2_000
    assert holds_original(status, Shape(4 * GIB)) and not holds_original(status, Shape(2 * GIB))
