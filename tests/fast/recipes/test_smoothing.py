"""Smoothing: large inputs of a layer move into its weights, and the model computes the same."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import smoothing

IDS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9]
SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 64,
}


def model(**changes: Any) -> Any:
    torch.manual_seed(1)
    made: Any = LlamaForCausalLM(LlamaConfig(**{**SIZES, "num_key_value_heads": 2, **changes}))
    for layer in made.model.layers:  # some columns of its inputs are large, as in trained models
        layer.input_layernorm.weight.data[3] = 40.0
        layer.post_attention_layernorm.weight.data[7] = -25.0
        layer.mlp.up_proj.weight.data[5] *= 50
    return made.eval()


def largest(made: Any) -> dict[str, float]:
    found = smoothing._largest_inputs(made, dict(made.named_modules()), IDS)
    return {name: float(each.max() / each.median()) for name, each in found.items() if "layers" in name}


def logits(made: Any) -> torch.Tensor:
    with torch.inference_mode():
        return made(torch.tensor([IDS])).logits


@pytest.mark.parametrize(
    "changes",
    [{}, {"num_key_value_heads": 4}, {"attention_bias": True, "mlp_bias": True}, {"head_dim": 16}],
    ids=["shared-values", "own-values", "biases", "wide-heads"],
)
def test_the_model_computes_what_it_did_with_smaller_inputs(changes: dict[str, Any]) -> None:
    made = model(**changes)
    factors = smoothing.factors_of(made, IDS)
    smoothed = copy.deepcopy(made)
    weights = smoothed.state_dict()
    assert factors.keys() <= weights.keys()
    for name, factor in factors.items():
        weights[name].copy_(factor.applied(weights[name]))
    assert torch.allclose(logits(made), logits(smoothed), rtol=1e-3, atol=1e-4)
    before, after = largest(made), largest(smoothed)
    assert after["model.layers.0.self_attn.q_proj"] < before["model.layers.0.self_attn.q_proj"] / 3
    if not changes.get("mlp_bias"):
        assert after["model.layers.1.mlp.down_proj"] < before["model.layers.1.mlp.down_proj"] / 3


def test_norms_in_16_bits_lose_nothing() -> None:
    made = model().to(torch.bfloat16)
    norm = made.model.layers[0].input_layernorm.weight
    factor = smoothing.factors_of(made, IDS)["model.layers.0.input_layernorm.weight"]
    exact = factor.applied(norm)
    assert torch.allclose(exact.to(torch.bfloat16).float(), exact, rtol=1e-5)


def test_a_model_of_another_kind_is_left_as_it_is(tmp_path: Any) -> None:
    assert smoothing.smoothing(tmp_path, {"model_type": "gemma2"}) == {}
