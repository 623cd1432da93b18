#!/usr/bin/env python3
"""Ask a model questions, and write its answers: the quality test of a model that is added.

OUT/questions.json has a list of texts; OUT/answers.json gets the answers in the same order. They are greedy
and short. It judges nothing: the caller knows what is right.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from recipe_errors import RecipeError, exit_code, needed_packages, note

with needed_packages():
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

ANSWER_TOKENS = 32


def answers(folder: Path, questions: list[str]) -> list[str]:
    """Return the greedy answers of the model."""
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    options: dict[str, Any] = {"dtype": torch.bfloat16, "use_safetensors": True}
    model: Any = AutoModelForCausalLM.from_pretrained(folder, **options)
    model.eval()
    return [_answer(model, tokenizer, question) for question in questions]


def _answer(model: Any, tokenizer: Any, question: str) -> str:
    if getattr(tokenizer, "chat_template", None):
        chat = [{"role": "user", "content": question}]
        prompt = tokenizer.apply_chat_template(
            chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
    else:
        prompt = tokenizer(f"Question: {question}\nAnswer:", return_tensors="pt")
    prompt.pop("token_type_ids", None)
    with torch.inference_mode():
        output = model.generate(**prompt, do_sample=False, max_new_tokens=ANSWER_TOKENS)
    return tokenizer.decode(output[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True).strip()


def run(args: argparse.Namespace) -> int:
    questions = json.loads((args.out / "questions.json").read_text(encoding="utf-8"))
    if not isinstance(questions, list) or not all(isinstance(one, str) for one in questions):
        raise RecipeError("questions.json is not a list of texts")
    found = answers(args.model, questions)
    (args.out / ".answers.json").write_text(json.dumps(found), encoding="utf-8")
    (args.out / ".answers.json").replace(args.out / "answers.json")
    note(f"{len(found)} questions were answered")
    return 0


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Ask a model the questions of OUT/questions.json.",
        epilog="example: python3 ask_questions.py base_model OUT",
    )
    parser.add_argument("model", type=Path, help="folder of a whole model")
    parser.add_argument("out", type=Path, help="folder with questions.json; gets answers.json")
    return parser


def main(argv: list[str] | None = None) -> int:
    return exit_code(run, parser().parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
