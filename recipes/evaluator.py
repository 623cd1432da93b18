#!/usr/bin/env python3
"""Compare a base model with its fine-tuned adapter, or with a whole model, on test conversations.

Prints one JSON report to stdout, logs to stderr, so that `evaluator.py ... | jq .comparison`
works. The keys `base_model`, `finetuned_model` and `comparison` are those of the published
fine-tuning solution; everything else is under `details`. Test data must not have been
trained on: use the `_test` file of dataset_split.py.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chat_messages import Conversation, is_learnt
from conversations import BadRecords, read_conversations
from method_rows import DPO, SUPERVISED, read_records
from recipe_errors import RecipeError, exit_code, needed_packages, note
from report_table import table
from right_answers import learnt_answers
from text_scores import Outputs, References, bleu, compare, comparison, exact_match, rouge

with needed_packages():
    import torch

    from chat_frames import REASONING_END
    from chat_tokens import ChatEncoder, load_tokenizer
    from generation import Generated, generate, losses, perplexity_of_losses, tokens_per_second
    from lora_model import load_base, with_adapter
    from precision import precision
    from tokenized_data import Example

SHOWN_ANSWERS = 3

SIGNS = {
    "perplexity": "per cent it fell; positive is better",
    "speed": "per cent of growth in generated tokens per second; positive is faster",
    "message_length": "per cent of growth in mean characters per answer",
}


@dataclass(frozen=True)
class Question:
    """A prompt taken from a test conversation, with its real answer."""

    input: str  # the last user message, for the reader
    prompt: str  # everything before the answer, as the model gets it
    reference: str
    is_alone: bool = False
    """Whether nothing was said before, so that `input` alone asks it."""


def question(messages: Conversation, turn: int, encoder: ChatEncoder) -> Question:
    """Return the `turn`-th assistant message of a conversation as a question."""
    at = [index for index, one in enumerate(messages) if is_learnt(one)][turn]
    answer = encoder.answer(messages.first(at + 1))
    prompt = encoder.prompt(messages.first(at), thinking=REASONING_END in answer)
    return Question(messages[at - 1]["content"], prompt, answer, is_alone=at == 1)


def choose_questions(
    conversations: list[Conversation], count: int, seed: int, encoder: ChatEncoder
) -> list[Question]:
    """Return one random assistant message from each of `count` random conversations."""
    generator = random.Random(seed)
    chosen = generator.sample(conversations, min(count, len(conversations)))
    turns = [sum(map(is_learnt, messages)) for messages in chosen]
    return [
        question(messages, generator.randrange(count), encoder)
        for messages, count in zip(chosen, turns, strict=True)
    ]


class Evaluation:
    """The same measurements for both models."""

    def __init__(self, args: argparse.Namespace, conversations: list[Conversation]) -> None:
        self.args = args
        self.speed_tokens = args.speed_tokens or (64 if torch.cuda.is_available() else 16)
        self.encoder = ChatEncoder(load_tokenizer(args.model))
        self.examples = self._examples(conversations)
        self.questions = choose_questions(conversations, args.samples, args.seed, self.encoder)
        self.intents = [question(messages, -1, self.encoder) for messages in conversations]

    def _examples(self, conversations: list[Conversation]) -> Sequence[Example]:
        encoded = [self.encoder.encode(messages) for messages in conversations]
        cut = [(ids[: self.args.context], labels[: self.args.context]) for ids, labels in encoded]
        usable = [example for example in cut if any(label >= 0 for label in example[1])]
        if not usable:
            text = f"no answer is within the context of {self.args.context} tokens"
            raise RecipeError(text, "raise --context")
        return usable

    def measure(self, model: Any, name: str) -> tuple[dict[str, Any], dict[str, Any], Outputs]:
        """Return the published part of the report for one model, our additions, and its samples."""
        model.eval()
        started = time.monotonic()
        lost = losses(model, self.examples, self.encoder.tokenizer.pad_token_id)
        known: dict[str, Any] = {"perplexity": perplexity_of_losses(lost)}
        answers = self._answers(model, self.questions, self.args.max_new_tokens)
        references = [one.reference for one in self.questions]
        known["message_length_avg"] = sum(map(len, answers.texts)) / len(answers.texts)
        known["sample_generations"] = [
            {"input": one.input, "reference": one.reference, "generated": text}
            for one, text in zip(self.questions, answers.texts, strict=True)
        ][: self.args.show]
        added: dict[str, Any] = {
            "tokens_per_second": tokens_per_second(
                model,
                self.encoder,
                [one.prompt for one in self.questions[: self.args.batch]],
                self.speed_tokens,
            ),
            "tokens_per_message": answers.tokens / len(answers.texts),
            "bleu": bleu(answers.texts, references),
            "rouge": rouge(answers.texts, references),
        }
        if self.args.scaling:
            added["scaling"] = self._scaling(model)
        said: list[str] = []
        if self.args.accuracy:
            said = self._answers(model, self.intents, self.args.max_label_tokens).texts
            added["accuracy"] = exact_match(said, [one.reference for one in self.intents])
        note(f"{name}: measured in {time.monotonic() - started:.1f} s")
        samples = Outputs(
            dict(enumerate(lost)),
            dict(enumerate(answers.texts)),
            dict(enumerate(said)),
            added["tokens_per_second"],
        )
        return known, added, samples

    def compared(self, base: Outputs, finetuned: Outputs) -> dict[str, Any]:
        """Return the scores with their confidence intervals, and the answers that got worse."""
        references = References(
            [one.input for one in self.questions],
            [one.reference for one in self.questions],
            [one.reference for one in self.intents],
        )
        return compare(base, finetuned, references, self.args.seed)

    def learnt(self, base: Outputs, finetuned: Outputs) -> dict[str, Any]:
        """Return which of the questions asked alone only the fine-tuned model answers right."""
        alone = [place for place, one in enumerate(self.questions) if one.is_alone]
        asked = [(self.questions[place].input, self.questions[place].reference) for place in alone]
        before, after = ([model.answers[place] for place in alone] for model in (base, finetuned))
        return learnt_answers(asked, before, after, SHOWN_ANSWERS)

    def _scaling(self, model: Any) -> dict[str, float]:
        """Return the speeds of one answer and of 16 at a time, and their share of a linear growth."""
        prompts = itertools.cycle([one.prompt for one in self.questions])
        few, many = (
            tokens_per_second(model, self.encoder, [next(prompts) for _ in range(count)], self.speed_tokens)
            for count in (1, 16)
        )
        return {"one_request": few, "16_requests": many, "percent_of_linear": many / (few * 16) * 100}

    def _answers(self, model: Any, questions: list[Question], max_new_tokens: int) -> Generated:
        prompts = [one.prompt for one in questions]
        return generate(model, self.encoder, prompts, max_new_tokens, self.args.batch)

    def details(self, base: dict[str, Any], finetuned: dict[str, Any]) -> dict[str, Any]:
        details = {
            "base_model": base,
            "finetuned_model": finetuned,
            "comparison_signs": SIGNS,
            "test_conversations": len(self.intents),
            "generated_messages": len(self.questions),
            "batch": self.args.batch,
            "max_new_tokens": self.args.max_new_tokens,
            "speed_tokens": self.speed_tokens,
            "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
            "model": self.args.model,
            "adapter": str(self.args.finetuned or self.args.adapter),
            "data": str(self.args.data),
        }
        if self.args.accuracy:
            intents = {one.reference for one in self.intents}
            details["intents_in_test"] = len(intents)
            details["accuracy_by_chance"] = 1 / len(intents)
        return details


def evaluate(args: argparse.Namespace) -> dict[str, Any]:
    if args.method == DPO:
        conversations = [each.conversation for each in read_records(args.data, DPO)]
    else:
        conversations = read_conversations(args.data, BadRecords(skip=args.skip_bad))
    if args.limit:
        shuffled = random.Random(args.seed).sample(conversations, len(conversations))
        conversations = shuffled[: args.limit]
    evaluation = Evaluation(args, conversations)
    model = load_base(args.model, precision(args.precision))
    base, base_added, base_samples = evaluation.measure(model, "base model")
    if args.finetuned:
        del model
        model = load_base(args.finetuned, precision(args.precision))
    else:
        model = with_adapter(model, args.adapter)
    finetuned, finetuned_added, samples = evaluation.measure(model, "fine-tuned model")
    both = (base, finetuned)
    speed = (base_added["tokens_per_second"], finetuned_added["tokens_per_second"])
    return {
        "base_model": base,
        "finetuned_model": finetuned,
        "comparison": comparison(
            perplexity=(base["perplexity"], finetuned["perplexity"]),
            speed=speed,
            length=tuple(one["message_length_avg"] for one in both),
        ),
        "details": {
            **evaluation.details(base_added, finetuned_added),
            **evaluation.compared(base_samples, samples),
            "right_answers": evaluation.learnt(base_samples, samples),
        },
    }


def run(args: argparse.Namespace) -> int:
    if args.table:
        print(table(args.table))
        return 0
    tuned = "finetuned" if args.finetuned else "adapter"
    missing = [name for name in ("model", tuned, "data") if getattr(args, name) is None]
    if missing:
        raise RecipeError(f"needs --{' --'.join(missing)}, see --help")
    print(json.dumps(evaluate(args), indent=2, ensure_ascii=False))
    return 0


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Compare a base model with its fine-tuned adapter; JSON on stdout.",
        epilog="examples:\n"
        "  python3 evaluator.py --model base_model --adapter run1/adapter \\\n"
        "      --data chats_test.jsonl > report.json\n"
        "  python3 evaluator.py --table report.json",
    )
    parser.add_argument("--model", help="base model: local folder or hub id")
    parser.add_argument("--adapter", type=Path, help="folder that finetune.py wrote")
    parser.add_argument("--finetuned", help="in its place, a whole model: a folder that finetune.py wrote")
    parser.add_argument("--data", type=Path, help="test conversations (JSONL)")
    parser.add_argument(
        "--method", choices=(SUPERVISED, DPO), default=SUPERVISED, help="the form of the data"
    )
    parser.add_argument("--table", type=Path, metavar="REPORT", help="only show a report as a table")
    parser.add_argument("--accuracy", action="store_true", help="measure the share of exactly right answers")
    parser.add_argument("--scaling", action="store_true", help="compare the speed of 1 and of 16 answers")
    parser.add_argument("--samples", type=int, default=32, help="answers to generate (default 32)")
    parser.add_argument("--show", type=int, default=5, help="answers in the report (default 5)")
    parser.add_argument("--limit", type=int, help="most test conversations to use (default: all)")
    parser.add_argument("--max-new-tokens", type=int, default=128, help="tokens per answer (default 128)")
    parser.add_argument("--max-label-tokens", type=int, default=24, help="with --accuracy (default 24)")
    parser.add_argument(
        "--speed-tokens",
        type=int,
        help="tokens per answer when speed is measured (default 64 on a GPU, 16 without one)",
    )
    parser.add_argument("--batch", type=int, default=16, help="answers at a time (default 16)")
    parser.add_argument("--context", type=int, default=1024, help="longest conversation (default 1024)")
    parser.add_argument("--precision", choices=("auto", "no", "bf16", "fp16"), default="auto")
    parser.add_argument("--seed", type=int, default=42, help="seed of the samples (default 42)")
    parser.add_argument("--skip-bad", action="store_true", help="leave bad records out")
    return parser


def main(argv: list[str] | None = None) -> int:
    return exit_code(run, parser().parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
