"""A copy of a model with weights of fewer bits: its numbers, its format, and how its quality is judged.

What vLLM makes of it is `tests/e2e/inference/test_weights.py`'s.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import ask_questions
import quantize
import weights_quality

LAYER = "model.layers.0.mlp.up_proj.weight"


def matrix(rows: int = 64, columns: int = 96) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)


def test_8_bits_are_within_half_a_step_of_the_original() -> None:
    weight = matrix()
    weight[3] = 0
    made = quantize.int8_tensors(LAYER, weight)
    whole, scale = made[LAYER], made[f"{LAYER}_scale"]
    assert (whole.dtype, scale.shape) == (torch.int8, (64, 1))
    difference = (whole.float() * scale - weight.float()).abs()
    assert (difference <= scale / 2 + 1e-6).all()
    assert not whole[3].any() and scale.isfinite().all()


def unpacked(packed: torch.Tensor) -> torch.Tensor:
    """Return the numbers of rows that hold eight in each 32 bits."""
    parts = [(packed.to(torch.int64) >> shift) & 15 for shift in range(0, 32, 4)]
    return torch.stack(parts, 2).view(packed.shape[0], -1)


def test_4_bits_are_packed_with_the_scale_and_offset_of_each_group() -> None:
    weight = matrix()
    made = quantize.int4_tensors(LAYER, weight)
    stem = LAYER.removesuffix("weight")
    assert made[f"{stem}weight_shape"].tolist() == [64, 96]
    packed, scale = made[f"{stem}weight_packed"], made[f"{stem}weight_scale"].float()
    assert packed.shape == (64, 12) and packed.dtype == torch.int32 and scale.shape == (64, 3)
    offset = unpacked(made[f"{stem}weight_zero_point"].t().contiguous()).t()
    numbers = unpacked(packed).view(64, 3, 32)
    restored = (numbers - offset[:, :, None]) * scale[:, :, None]
    error = (restored.view(64, 96) - weight.float()).abs()
    assert error.mean() < 0.15 * weight.float().abs().mean()
    assert (error.view(64, 3, 32) <= 2 * scale[:, :, None]).all()


def test_the_offsets_of_rows_are_packed_along_the_rows() -> None:
    """compressed-tensors packs the offsets of eight neighbouring rows, and the numbers of eight columns."""
    numbers = torch.arange(8).view(1, 8)
    assert quantize.packed(numbers).tolist() == [[0x76543210]]
    assert quantize.packed(torch.full((1, 8), 15)).tolist() == [[-1]]


def model_folder(folder: Path, tensors: dict[str, torch.Tensor], **config: Any) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"], **config}))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors.index.json").write_text("{}")
    names = sorted(tensors)
    for number, part in enumerate((names[:1], names[1:])):
        save_file({name: tensors[name] for name in part}, folder / f"part-{number}.safetensors")
    return folder


TENSORS = {
    LAYER: matrix(),
    "model.layers.0.mlp.gate.weight": matrix(32, 96),
    "model.layers.0.input_layernorm.weight": torch.ones(96, dtype=torch.bfloat16),
    "model.embed_tokens.weight": matrix(128, 96),
}


def test_only_the_matrices_of_layers_change_and_the_other_files_are_copied(tmp_path: Path) -> None:
    model = model_folder(tmp_path / "model", TENSORS)
    before, after = quantize.quantize(model, tmp_path / "out", "int8")
    assert after < before
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())["weight_map"]
    found = {name: load_file(tmp_path / "out" / file)[name] for name, file in index.items()}
    assert set(found) == {*TENSORS, f"{LAYER}_scale"}
    assert [name for name in TENSORS if found[name].dtype != torch.bfloat16] == [LAYER]
    assert (tmp_path / "out" / "tokenizer.json").read_text() == "{}"
    config = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert (config["quant_method"], config["format"]) == ("compressed-tensors", "int-quantized")


@pytest.mark.parametrize(
    ("config", "tensors", "weights", "said"),
    [
        ({"quantization_config": {"bits": 4}}, {}, "int8", "fewer bits already"),
        ({"vision_config": {"layers": 2}}, {}, "int8", "vision_config"),
        ({}, {"model.layers.0.mlp.experts.0.up_proj.weight": matrix()}, "int8", "experts"),
        ({}, {"model.layers.0.mlp.down_proj.weight": matrix(60, 96)}, "int4", "multiples of 32"),
    ],
    ids=["twice", "pictures", "experts", "odd-sizes"],
)
def test_a_model_that_cannot_be_converted_is_refused(
    tmp_path: Path,
    config: dict[str, Any],
    tensors: dict[str, torch.Tensor],
    weights: str,
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = model_folder(tmp_path / "model", {**TENSORS, **tensors}, **config)
    assert quantize.main([str(model), str(tmp_path / "out"), "--weights", weights]) == 1
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out" / "quality.json").exists()


def test_a_comparison_that_is_not_made_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = model_folder(tmp_path / "model", TENSORS)
    out = tmp_path / "out"
    assert quantize.main([str(model), str(out), "--weights", "int4", "--no-comparison", "too large"]) == 0
    found = json.loads((out / "quality.json").read_text())
    assert (found["state"], found["reason"]) == ("not_run", "too large")
    assert json.loads(capsys.readouterr().out) == found


ASKED = [{"question": "a", "answers": ["7", "seven"]}, {"question": "b", "answers": ["cold"]}]


def measured(perplexity: float, *answers: str) -> dict[str, Any]:
    return {"perplexity": perplexity, "tokens": 10, "answers": list(answers)}


def test_the_quality_is_the_least_of_the_measures() -> None:
    original = measured(10.0, "There are seven.", "It is warm.")
    good = weights_quality.judged(original, measured(10.05, "7 days", "Cold."), ASKED)
    assert good["percent"] == pytest.approx(99.50, abs=0.01)
    assert good["questions"] == {"asked": 2, "original_right": 1, "still_right": 1, "lost": []}
    wrong = weights_quality.judged(original, measured(9.0, "There are 17.", "Cold."), ASKED)
    assert wrong["percent"] == 0 and wrong["questions"]["lost"] == ["a"]
    better = weights_quality.judged(original, measured(9.0, "seven", "x"), ASKED)
    assert better["percent"] == 100


def test_the_questions_and_the_text_are_usable() -> None:
    asked = weights_quality.questions()
    assert len(asked) >= 16 and all(one["question"] and one["answers"] for one in asked)
    assert len(weights_quality.TEXT.read_text("utf-8").split()) > 1000


def dequantized(folder: Path) -> dict[str, torch.Tensor]:
    found = load_file(folder / "model.safetensors")
    return {
        name: each.float() * found.get(f"{name}_scale", torch.tensor(1.0))
        for name, each in found.items()
        if not name.endswith("_scale")
    }


def test_a_model_of_transformers_is_smoothed_and_computes_nearly_the_same(
    tiny_model: Path, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    quantize.quantize(tiny_model, tmp_path / "out", "int8")
    original = load_file(tiny_model / "model.safetensors")
    copied = dequantized(tmp_path / "out")
    norm = "model.layers.0.input_layernorm.weight"
    assert not torch.equal(original[norm].float(), copied[norm]), "it is smoothed"
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32).eval()
    ids = torch.arange(4, 60)[None]
    with torch.inference_mode():
        before = model(ids).logits
        model.load_state_dict(copied, strict=False)
        after = model(ids).logits
    assert 0 < (before - after).abs().mean() < 0.02 * before.abs().mean()


def test_a_model_answers_the_questions_in_their_order(tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / "questions.json").write_text(json.dumps(["one?", "two?"]))
    assert ask_questions.main([str(tiny_model), str(tmp_path)]) == 0
    found = json.loads((tmp_path / "answers.json").read_text())
    assert len(found) == 2 and all(isinstance(each, str) for each in found)
    (tmp_path / "questions.json").write_text("{}")
    assert ask_questions.main([str(tiny_model), str(tmp_path)]) == 1
