"""What makes training fast gives the results of the plain computation."""

from __future__ import annotations

from pathlib import Path

import numpy
import peft
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

import lora_layers
import precision
import separate_attention
from chat_tokens import IGNORED
from tokenized_data import join_rows, pack, pad_batch, plain_row
from training_loss import LabelledLoss

SIZE = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 60,
}  # fmt: skip


def examples(lengths: tuple[int, ...] = (9, 5, 12, 3)) -> list[tuple[numpy.ndarray, numpy.ndarray]]:
    random = numpy.random.default_rng(1)
    found = []
    for length in lengths:
        ids = random.integers(0, SIZE["vocab_size"], length)
        labels = numpy.where(random.random(length) < 0.5, ids, IGNORED)
        labels[0], labels[-1] = IGNORED, ids[-1]
        found.append((ids, labels))
    return found


def base() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SIZE)).eval()


def with_lora(model: torch.nn.Module) -> peft.PeftModel:
    torch.manual_seed(1)
    tuned = peft.get_peft_model(
        model, peft.LoraConfig(task_type="CAUSAL_LM", r=4, target_modules="all-linear")
    )
    with torch.no_grad():
        for name, weight in tuned.named_parameters():
            if "lora_B" in name:  # it starts as zero, which would hide the other gradients
                weight.normal_(std=0.1)
    return tuned


def gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}


def test_the_fast_way_has_the_loss_and_the_gradients_of_the_plain_one() -> None:
    plain = with_lora(base())
    rows = list(pack(examples(), 16))
    padded = pad_batch(rows, 0)
    expected = plain(**padded, use_cache=False, num_items_in_batch=1).loss
    expected.backward()

    model = base()
    assert separate_attention.use_separate_attention(model)
    fast = with_lora(model)
    lora_layers.simplify(fast)
    assert any(isinstance(layer, lora_layers.PlainLora) for layer in fast.modules())
    loss = LabelledLoss(fast).sum(fast, join_rows(rows))
    loss.backward()

    torch.testing.assert_close(loss, expected)
    wanted, found = gradients(plain), gradients(fast)
    assert wanted.keys() == found.keys() and wanted
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient, atol=1e-5, rtol=1e-4)


def test_the_output_layer_computes_labelled_positions_only() -> None:
    model, seen = base(), []
    loss = LabelledLoss(model)
    model.lm_head.register_forward_hook(lambda _, inputs, output: seen.append(output.shape[:2].numel()))
    batch = pad_batch([plain_row(each) for each in examples()], 0)
    found = loss.sum(model, batch)
    assert seen == [int((batch["labels"][:, 1:] != IGNORED).sum())]
    expected = base()(**batch, num_items_in_batch=1).loss
    torch.testing.assert_close(found, expected)


def test_the_first_token_of_a_conversation_is_not_foretold_by_the_one_before() -> None:
    ids = numpy.arange(6)
    rows = list(pack([(ids, ids), (ids, ids)], 12))
    model = base()
    assert separate_attention.use_separate_attention(model)
    loss = LabelledLoss(model)
    both, alone = loss.sum(model, join_rows(rows)), loss.sum(model, join_rows([plain_row((ids, ids))]))
    torch.testing.assert_close(both, 2 * alone)


def test_a_sliding_window_holds_in_each_conversation() -> None:
    torch.manual_seed(0)
    plain = MistralForCausalLM(MistralConfig(**SIZE, sliding_window=4)).eval()
    rows = [plain_row(each) for each in examples()]
    expected = [plain(input_ids=torch.from_numpy(row["input_ids"])[None].long()).logits[0] for row in rows]
    assert separate_attention.use_separate_attention(plain)
    batch = join_rows(rows)
    del batch["labels"]
    torch.testing.assert_close(plain(**batch, use_cache=False).logits[0], torch.cat(expected))


class Remembering(LlamaForCausalLM):
    """A model that carries something from each token to all later ones, as recurrent ones do."""

    def forward(self, input_ids, **given):  # type: ignore[override]
        found = super().forward(input_ids=input_ids, **given)
        found.logits = found.logits + self.lm_head(self.model.embed_tokens(input_ids).cumsum(1))
        return found


def test_a_model_that_does_not_keep_conversations_apart_keeps_its_own_attention() -> None:
    torch.manual_seed(0)
    model = Remembering(LlamaConfig(**SIZE))
    assert not separate_attention.use_separate_attention(model)
    assert model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize(
    ("flags", "bf16_seconds", "chosen"),
    [
        ("flags : fpu avx512_bf16 sse", 0.5, torch.bfloat16),
        ("flags : fpu avx512_bf16 sse", 2.0, None),
        ("flags : fpu amx_bf16 sse", 0.1, torch.bfloat16),
        ("flags : fpu avx512f sse", 0.1, None),
    ],
)
def test_bf16_is_chosen_on_a_cpu_that_has_it_and_is_faster_with_it(
    flags: str,
    bf16_seconds: float,
    chosen: torch.dtype | None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    facts = tmp_path / "cpuinfo"
    facts.write_text(flags)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(precision, "CPU_FACTS", facts)
    seconds = {torch.bfloat16: bf16_seconds, torch.float32: 1.0}
    monkeypatch.setattr(precision, "_product_seconds", seconds.__getitem__)
    assert precision.precision("auto") == chosen
