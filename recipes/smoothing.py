"""Move the size of a model's activations into its weights, so that 8 bits suffice for both (SmoothQuant).

Some columns of a layer's input are many times larger than the others, so that whole numbers of 8 bits, which
have one scale for each token, leave nothing of the small ones. Each column is divided by a factor, in the
norm or the matrix before it, and the matrix behind it is multiplied by the same: the model computes what it
did (Xiao et al. 2023). The sizes are those of one pass over a text (README.md beside this file).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipe_errors import needed_packages

with needed_packages():
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

MODELS = frozenset({"llama", "mistral", "qwen2", "qwen3"})
"""The `model_type` of models whose layers have the parts below, and whose norms multiply by their weight."""
STRENGTH = 0.7
"""The part of an activation's size that moves into the weights."""
TEXT = Path(__file__).resolve().parent / "README.md"
TEXT_TOKENS = 1024
SMALLEST = 1e-5
NORMS = {
    "input_layernorm": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "post_attention_layernorm": ("mlp.gate_proj", "mlp.up_proj"),
}


@dataclass(frozen=True)
class Factors:
    """Factors of the rows, and of the columns, of a tensor."""

    rows: Any = None
    columns: Any = None

    def applied(self, weight: Any) -> Any:
        """Return the tensor in 32 bits."""
        found = weight.float()
        if self.rows is not None:
            found = found * (self.rows if found.dim() == 1 else self.rows[:, None])
        return found if self.columns is None else found * self.columns


def smoothing(folder: Path, config: Mapping[str, Any]) -> dict[str, Factors]:
    """Return the factors by the names of tensors; none for a model of another kind."""
    if config.get("model_type") not in MODELS:
        return {}
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, use_safetensors=True)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    longest = min(TEXT_TOKENS, int(config.get("max_position_embeddings") or TEXT_TOKENS))
    ids = tokenizer.encode(TEXT.read_text(encoding="utf-8"))[:longest]
    return factors_of(model, ids)


def factors_of(model: Any, ids: list[int]) -> dict[str, Factors]:
    modules = dict(model.named_modules())
    layers = sorted({name.rpartition(".")[0] for name in modules if name.endswith(".input_layernorm")})
    largest = _largest_inputs(model, modules, ids)
    found: dict[str, Factors] = {}
    for layer in layers:
        columns: dict[str, Any] = {}
        for norm, names in NORMS.items():
            weights = [modules[f"{layer}.{name}"].weight for name in names]
            wanted = _factor(largest[f"{layer}.{names[0]}"], weights)
            before = modules[f"{layer}.{norm}"].weight.detach()
            after = (before.float() / wanted).to(before.dtype).float()
            is_usable = after.abs() > 0
            exact = torch.where(is_usable, before.float() / torch.where(is_usable, after, 1.0), 1.0)
            found[f"{layer}.{norm}.weight"] = Factors(rows=1 / exact)
            columns |= dict.fromkeys(names, exact)
        rows = {
            "mlp.up_proj": _of_outputs(model, modules, layer, "mlp.up_proj", "mlp.down_proj", largest),
            "self_attn.v_proj": _of_outputs(
                model, modules, layer, "self_attn.v_proj", "self_attn.o_proj", largest
            ),
        }
        columns |= {"mlp.down_proj": rows["mlp.up_proj"][1], "self_attn.o_proj": rows["self_attn.v_proj"][1]}
        for name, factor in columns.items():
            before = rows[name][0] if name in rows else None
            found[f"{layer}.{name}.weight"] = Factors(None if before is None else 1 / before, factor)
    return found


def _of_outputs(
    model: Any, modules: Mapping[str, Any], layer: str, before: str, after: str, largest: Mapping[str, Any]
) -> tuple[Any, Any]:
    """Return the factors of the outputs of one matrix, and of the inputs of the next; None where it has a
    bias. Several heads of queries share one of values."""
    first, second = modules[f"{layer}.{before}"], modules[f"{layer}.{after}"]
    if first.bias is not None:
        return None, None
    size = (
        getattr(model.config, "head_dim", None)
        or model.config.hidden_size // model.config.num_attention_heads
    )
    shared = second.in_features // first.out_features
    width = size if shared > 1 else first.out_features
    groups = first.out_features // width

    def merged(values: Any) -> Any:
        return values.view(groups, shared, width).amax(1).reshape(-1)

    strongest = merged(largest[f"{layer}.{after}"])
    factor = _factor(strongest, [merged(second.weight.detach().float().abs().amax(0))[None]])
    spread = factor.view(groups, 1, width).expand(groups, shared, width).reshape(-1)
    return factor, spread


def _factor(largest: Any, weights: list[Any]) -> Any:
    size = torch.stack([weight.detach().float().abs().amax(0) for weight in weights]).amax(0)
    return largest.clamp(min=SMALLEST) ** STRENGTH / size.clamp(min=SMALLEST) ** (1 - STRENGTH)


def _largest_inputs(model: Any, modules: Mapping[str, Any], ids: list[int]) -> dict[str, Any]:
    """Return the largest absolute value of each column of each matrix's input."""
    found: dict[str, Any] = {}

    def note(name: str) -> Any:
        def hook(_: Any, inputs: tuple[Any, ...]) -> None:
            found[name] = inputs[0].float().abs().amax((0, 1))

        return hook

    hooks = [
        module.register_forward_pre_hook(note(name))
        for name, module in modules.items()
        if isinstance(module, torch.nn.Linear)
    ]
    with torch.inference_mode():
        model(torch.tensor([ids]))
    for hook in hooks:
        hook.remove()
    return found
