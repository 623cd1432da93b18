"""Make the measured models: the recipes' tiny one, one of a folder, and random weights in published shapes.

Speed depends on shapes, not on the values of weights. Each comes with a LoRA adapter on all its projections,
and as a third model that has the adapter in its weights. 16-bit weights, as models are published.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import peft
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

transformers.logging.disable_progress_bar()  # a report is read later, not watched

LORA = {
    "r": 16,
    "lora_alpha": 32,
    "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
}
"""The adapter of recipes/config_tiny.json, on the recipes' default layers."""
CONTEXT = 2048
SHAPES: dict[str, dict[str, Any]] = {
    "qwen3-0.6b-shaped": {
        **{"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28},
        **{"num_attention_heads": 16, "tie_word_embeddings": True},
    },
    "qwen3-8b-shaped": {
        **{"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36},
        **{"num_attention_heads": 32, "tie_word_embeddings": False},
    },
}
VOCABULARY = 151_936
KINDS = ("tiny", *SHAPES)


@dataclass(frozen=True)
class Weights:
    """The folders of one model in its three forms."""

    base: Path
    adapter: Path
    merged: Path
    parameters: int
    vocabulary: int

    @property
    def gib(self) -> float:
        return 2 * self.parameters / 2**30


def make(kind: str, tiny: Path, folder: Path) -> Weights:
    """Write the three forms below `folder`; `tiny` is the folder of the tiny model, and `kind` may be one."""
    torch.manual_seed(0)
    model: Any  # the libraries' types do not allow it
    if kind not in SHAPES:
        tiny = tiny if kind == "tiny" else Path(kind)
        model = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.bfloat16)
    else:
        model = _random(kind, AutoTokenizer.from_pretrained(tiny))
    parameters, vocabulary = model.num_parameters(), model.config.vocab_size
    places = [folder / name for name in ("base", "adapters/tuned", "merged")]
    weights = Weights(*places, parameters=parameters, vocabulary=vocabulary)
    model.save_pretrained(weights.base)
    # Zero matrices would be as fast; random ones make the answers of the adapter differ.
    lora = peft.LoraConfig(task_type="CAUSAL_LM", init_lora_weights=False, **LORA)
    tuned: Any = peft.get_peft_model(model, lora)
    tuned.save_pretrained(str(weights.adapter))
    tuned.merge_and_unload().save_pretrained(weights.merged)
    for place in (weights.base, weights.merged):
        _save_tokenizer(tiny, place, vocabulary)
    return weights


def _random(kind: str, tokenizer: Any) -> Qwen3ForCausalLM:
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=CONTEXT,
        rope_parameters={"rope_theta": 1_000_000.0, "rope_type": "default"},
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **SHAPES[kind],
    )
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        return Qwen3ForCausalLM(config).eval()
    finally:
        torch.set_default_dtype(before)


def _save_tokenizer(tiny: Path, place: Path, vocabulary: int) -> None:
    """Return the tiny model's tokenizer, with unused words up to the size of the vocabulary."""
    AutoTokenizer.from_pretrained(tiny).save_pretrained(place)
    file = place / "tokenizer.json"
    content = json.loads(file.read_text())
    words = content["model"]["vocab"]
    words.update({f"w{number}": number for number in range(len(words), vocabulary)})
    file.write_text(json.dumps(content))
