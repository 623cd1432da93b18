"""An adapter's tokens are what the adapter makes of the base, however a batch is put together, and the base's
stay its own. The reference is peft."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import peft
import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.e2e.inference.served import Served

PROMPTS = [[5, 9, 17, 40], [300, 21, 8, 77, 12, 5], [7] * 12, [64, 3, 250, 11]]
TOLERANCE = 0.4
"""The difference of log-probabilities that is allowed: the engine computes in 16 bits."""
MERGED_AFTER_TOKENS = 256
"""The layers of the tiny model are merged long before."""
Found = dict[int, float]
"""Log-probabilities by token."""


@pytest.fixture(scope="module")
def adapter(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter on all projections that changes the answers."""
    torch.manual_seed(1)
    base: Any = AutoModelForCausalLM.from_pretrained(served.model, dtype=torch.bfloat16)
    config = peft.LoraConfig(
        task_type="CAUSAL_LM", r=8, lora_alpha=16, target_modules="all-linear", init_lora_weights=False
    )
    folder = tmp_path_factory.mktemp("adapters") / "tuned"
    peft.get_peft_model(base, config).save_pretrained(str(folder))
    return folder


def expected(model: Path, adapter: Path | None) -> list[torch.Tensor]:
    """Return the log-probabilities of the token after each prompt."""
    found: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    if adapter is not None:
        found = peft.PeftModel.from_pretrained(found, str(adapter))
    with torch.inference_mode():
        return [found(torch.tensor([prompt])).logits[0, -1].log_softmax(-1) for prompt in PROMPTS]


def ask(served: Served, model: str, prompt: list[int], tokens: int = 1) -> Found:
    request = {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    request |= {"logprobs": 5, "return_tokens_as_token_ids": True}
    headers = {"Authorization": f"Bearer {served.engine_key()}"}
    url = f"http://{served.replica.address}/v1/completions"
    answer = httpx.post(url, json=request, headers=headers, timeout=120, trust_env=False)
    assert answer.status_code == 200, answer.text
    (first, *_) = answer.json()["choices"][0]["logprobs"]["top_logprobs"]
    return {int(token.removeprefix("token_id:")): value for token, value in first.items()}


def check(found: list[Found], reference: list[torch.Tensor]) -> None:
    for answer, right in zip(found, reference, strict=True):
        assert answer == pytest.approx({token: float(right[token]) for token in answer}, abs=TOLERANCE)


def test_alone_or_beside_its_base_an_adapter_answers_as_peft_does(served: Served, adapter: Path) -> None:
    base, tuned = expected(served.model, None), expected(served.model, adapter)
    assert max(float((one - other).abs().max()) for one, other in zip(base, tuned, strict=True)) > 2
    served.cloud.neo("model", "add", "tuned", str(adapter), "--base", "tiny")
    served.wait_for_adapters("tuned")
    check([ask(served, "tuned", prompt) for prompt in PROMPTS], tuned)
    ask(served, "tuned", PROMPTS[0], MERGED_AFTER_TOKENS)
    check([ask(served, "tuned", prompt) for prompt in PROMPTS], tuned)
    check([ask(served, "tiny", prompt) for prompt in PROMPTS], base)
    with ThreadPoolExecutor(2 * len(PROMPTS)) as pool:
        together = [
            pool.submit(ask, served, model, prompt, 4) for prompt in PROMPTS for model in ("tiny", "tuned")
        ]
        found = [each.result() for each in together]
    check(found[0::2], base)
    check(found[1::2], tuned)
    served.cloud.neo("model", "delete", "tuned")
    served.wait_for_adapters()
