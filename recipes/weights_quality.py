#!/usr/bin/env python3
"""Compare a model whose weights have fewer bits with the original, as vLLM serves both.

The measures are the perplexity on a text that no model was trained on (quality_text.txt), and questions with
known answers (quality_questions.json): of those that the original answers right, the copy must too. Each
model is loaded in a process of its own, one after the other. `percent` is the least of the measures.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recipe_errors import RecipeError, exit_code, note

HERE = Path(__file__).resolve().parent
TEXT = HERE / "quality_text.txt"
QUESTIONS = HERE / "quality_questions.json"
CONTEXT = 1024
ANSWER_TOKENS = 32
REQUESTS_AT_A_TIME = 8


def compare(original: Path, copy: Path) -> dict[str, Any]:
    """Return the quality of the copy. Raises RecipeError where one of the models cannot be loaded."""
    return judged(_measured(original), _measured(copy), questions())


def judged(original: dict[str, Any], copy: dict[str, Any], asked: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return how the measurements of the copy compare with those of the original."""
    right = [
        [is_right(said, one["answers"]) for said, one in zip(model["answers"], asked, strict=True)]
        for model in (original, copy)
    ]
    known = sum(right[0])
    kept = sum(both for both in map(all, zip(*right, strict=True)))
    shares = [100 * original["perplexity"] / copy["perplexity"]]
    if known:
        shares.append(100 * kept / known)
    lost = [one["question"] for one, was, now in zip(asked, *right, strict=True) if was and not now]
    same = sum(one == other for one, other in zip(original["answers"], copy["answers"], strict=True))
    return {
        "percent": min(100.0, *shares),
        "perplexity": {"original": original["perplexity"], "copy": copy["perplexity"]},
        "questions": {"asked": len(asked), "original_right": known, "still_right": kept, "lost": lost},
        "same_answers": same,
        "tokens": original["tokens"],
    }


def questions() -> list[dict[str, Any]]:
    return json.loads(QUESTIONS.read_text(encoding="utf-8"))


def is_right(said: str, answers: Sequence[str]) -> bool:
    """Return whether an answer has one of the words, as a whole word."""
    return any(re.search(rf"\b{re.escape(word)}\b", said, re.IGNORECASE) for word in answers)


def _measured(model: Path) -> dict[str, Any]:
    """Return the measurements of one model, made in a process whose memory is free afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "measured.json"
        command = [sys.executable, str(HERE / "weights_quality.py"), "--measure", str(model)]
        code = subprocess.run([*command, "--output", str(result)], check=False).returncode
        if code or not result.is_file():
            raise RecipeError(f"{model}: vLLM could not measure it (exit code {code}); its log says why")
        found: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    note(f"{model}: perplexity {found['perplexity']:.4f} of {found['tokens']} tokens")
    return found


def measure(folder: Path) -> dict[str, Any]:
    """Return perplexity and answers of a model, from vLLM in this process."""
    vllm = importlib.import_module("vllm")  # the other parts need none

    limit = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("max_position_embeddings")
    context = min(CONTEXT, limit) if isinstance(limit, int) and limit > 0 else CONTEXT
    model = vllm.LLM(
        str(folder), max_model_len=context, max_num_seqs=REQUESTS_AT_A_TIME, enforce_eager=True, seed=0
    )
    tokenizer: Any = model.get_tokenizer()
    ids = tokenizer.encode(TEXT.read_text(encoding="utf-8"))
    parts = [ids[start : start + context - 1] for start in range(0, len(ids), context - 1)]
    scored = vllm.SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0)
    prompts: Any = [{"prompt_token_ids": part} for part in parts if len(part) > 1]
    losses = [
        -seen[token].logprob
        for output in model.generate(prompts, scored)
        for token, seen in zip(output.prompt_token_ids or (), output.prompt_logprobs or (), strict=True)
        if seen is not None
    ]
    greedy = vllm.SamplingParams(max_tokens=ANSWER_TOKENS, temperature=0)
    asked = [one["question"] for one in questions()]
    if getattr(tokenizer, "chat_template", None):
        talks: Any = [[{"role": "user", "content": text}] for text in asked]
        outputs = model.chat(talks, greedy)
    else:
        outputs = model.generate([f"Question: {text}\nAnswer:" for text in asked], greedy)
    perplexity = math.exp(math.fsum(losses) / len(losses))
    if not math.isfinite(perplexity):
        raise RecipeError(f"{folder}: its perplexity is {perplexity}")
    return {
        "perplexity": perplexity,
        "tokens": len(losses),
        "answers": [output.outputs[0].text for output in outputs],
    }


def run(args: argparse.Namespace) -> int:
    if args.measure:
        text = json.dumps(measure(args.measure))
        if args.output:
            args.output.write_text(text, encoding="utf-8")
        else:
            print(text)
        return 0
    if not (args.original and args.copy):
        raise RecipeError("needs --original and --copy, or --measure; see --help")
    print(json.dumps(compare(args.original, args.copy), indent=2))
    return 0


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Compare a model whose weights have fewer bits with the original; JSON on stdout.",
        epilog="example: python3 weights_quality.py --original base_model --copy OUT/model",
    )
    parser.add_argument("--original", type=Path, help="folder of the original")
    parser.add_argument("--copy", type=Path, help="folder of the copy with fewer bits")
    parser.add_argument("--measure", type=Path, metavar="MODEL", help="measure one model only")
    parser.add_argument("--output", type=Path, help="file for the measurements of --measure")
    return parser


def main(argv: list[str] | None = None) -> int:
    return exit_code(run, parser().parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
