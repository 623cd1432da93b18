#!/usr/bin/env python3
"""Train a tiny base model, for machines that reach no model hub.

It trains a byte-level BPE tokenizer and a small model of the Qwen3 architecture on plain text,
and writes the folder that any hub download has: config, safetensors, tokenizer, chat template.
From conversations it takes every message as a text of its own: the model learns the language of
the domain, but not which message answers which. Fine-tuning then teaches it to answer.
It must not see the test split, and it is no substitute for a real base model.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
from pathlib import Path
from typing import Any

from conversations import BadRecords, numbered_lines, read_conversations
from recipe_errors import RecipeError, exit_code, needed_packages, note
from tool_calls import texts_of

with needed_packages():
    import torch
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    transformers.logging.disable_progress_bar()  # a job's log is a file, not a terminal

SAMPLING = {"do_sample": True, "temperature": 0.2, "top_p": 0.9}
"""A model of so few weights writes nonsense at a higher temperature."""
END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"

# The turn format of the Qwen models, with tools and without reasoning.
CHAT_TEMPLATE = (
    "{% if tools %}{{ '<|im_start|>system\n' }}"
    "{% if messages[0]['role'] == 'system' %}{{ messages[0]['content'] + '\n\n' }}{% endif %}"
    '{{ \'# Tools\n\nCall functions as {"name": ..., "arguments": {...}} within <tool_call></tool_call>.'
    " The functions:\n<tools>' }}"
    "{% for tool in tools %}{{ '\n' + (tool | tojson) }}{% endfor %}{{ '\n</tools><|im_end|>\n' }}{% endif %}"
    "{% for message in messages %}"
    "{% if message['role'] == 'tool' %}"
    "{{ '<|im_start|>user\n<tool_response>\n' + message['content'] + '\n</tool_response><|im_end|>\n' }}"
    "{% elif not (tools and loop.first and message['role'] == 'system') %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + (message['content'] or '') }}"
    "{% for call in message['tool_calls'] or [] %}"
    "{% if message['content'] or not loop.first %}{{ '\n' }}{% endif %}"
    "{{ '<tool_call>\n' + ({'name': call['function']['name'], 'arguments': call['function']['arguments']}"
    " | tojson) + '\n</tool_call>' }}"
    "{% endfor %}"
    "{{ '<|im_end|>\n' }}"
    "{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def read_texts(paths: list[Path]) -> list[str]:
    """Yield one text per message of a .jsonl file, or per paragraph of any other file."""
    texts: list[str] = []
    for path in paths:
        if path.suffix == ".jsonl":
            chats = read_conversations(path, BadRecords(advice="repair the record"))
            said = (each for messages in chats for each in messages if each.get("weight", 1))
            texts += [text for each in said for text in texts_of(each)]
        else:
            text = "".join(line for _, line in numbered_lines(path, BadRecords(advice="")))
            texts += [part.strip() for part in text.split("\n\n") if part.strip()]
    if not texts:
        raise RecipeError(f"no text in {', '.join(map(str, paths))}; give a file with content")
    return texts


def train_tokenizer(texts: list[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer, which can encode any text in any language."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT, TURN_START, TURN_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def token_stream(tokenizer: PreTrainedTokenizerFast, texts: list[str], seed: int) -> torch.Tensor:
    """Return all texts in shuffled order, each closed by the end-of-text token."""
    order = random.Random(seed).sample(texts, len(texts))
    encoded = tokenizer(order, add_special_tokens=False, return_attention_mask=False)
    end = [tokenizer.pad_token_id]
    return torch.tensor([token for ids in encoded["input_ids"] for token in ids + end])


def new_model(tokenizer: Any, args: argparse.Namespace) -> Qwen3ForCausalLM:
    head_size = 32
    heads = args.hidden_size // head_size
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=args.hidden_size,
            intermediate_size=args.hidden_size * 3,
            num_hidden_layers=args.layers,
            num_attention_heads=heads,
            num_key_value_heads=max(heads // 2, 1),
            head_dim=head_size,
            max_position_embeddings=args.context,
            tie_word_embeddings=False,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def train(model: Qwen3ForCausalLM, stream: torch.Tensor, args: argparse.Namespace) -> int:
    """Predict the next token on random windows of the stream; return the number of steps taken.

    The learning rate follows the steps alone, so a slow machine trains the same model as a fast one. Only a
    run that reaches `--max-seconds` ends earlier.
    """
    window = min(args.window, len(stream) - 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate, fused=True)
    generator = torch.Generator().manual_seed(args.seed)
    started = time.monotonic()
    step, elapsed = 0, 0.0
    while step < args.max_steps and (step == 0 or elapsed < args.max_seconds):
        for group in optimizer.param_groups:
            group["lr"] = args.learning_rate * min((step + 1) / 20, 1) * _cosine(step / args.max_steps)
        starts = torch.randint(0, len(stream) - window, (args.batch,), generator=generator)
        batch = torch.stack([stream[start : start + window] for start in starts.tolist()])
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        elapsed = time.monotonic() - started
        if step % 20 == 0 or step == args.max_steps:
            speed = step * args.batch * window / elapsed
            note(
                f"base step {step} of {args.max_steps} loss {loss.item():.3f}"
                f" {speed:.0f} tokens/s {step / args.max_steps:.0%}"
            )
    return step


def _cosine(done: float) -> float:
    return 0.05 + 0.95 * (1 + math.cos(math.pi * done)) / 2


def run(args: argparse.Namespace) -> int:
    torch.manual_seed(args.seed)
    texts = read_texts(args.text)
    tokenizer = train_tokenizer(texts, args.vocab_size)
    stream = token_stream(tokenizer, texts, args.seed)
    if len(stream) < 2:
        raise RecipeError("the text is only one token long; give more text")
    model = new_model(tokenizer, args)
    size = sum(parameter.numel() for parameter in model.parameters())
    note(f"{len(stream)} tokens of text, vocabulary {len(tokenizer)}, {size / 1e6:.1f}M parameters")
    steps = train(model, stream, args)
    if steps < args.max_steps:
        note(
            f"warning: stopped by --max-seconds {args.max_seconds:g} after {steps} of {args.max_steps} steps;"
            " this model is worse than one trained in full. Allow more seconds, or fewer steps."
        )
    partial = args.output.with_name(f".{args.output.name}.partial")
    model.generation_config.update(**SAMPLING)
    model.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    partial.replace(args.output)
    note(f"{args.output}: base model and tokenizer written")
    return 0


def checked_run(args: argparse.Namespace) -> int:
    if args.max_steps < 1:
        raise RecipeError(f"--max-steps {args.max_steps}: must be at least 1")
    if args.output.exists():
        raise RecipeError(f"{args.output}: exists already; remove it or choose another --output")
    if args.hidden_size % 64:
        raise RecipeError(f"--hidden-size {args.hidden_size}: must be a multiple of 64")
    return run(args)


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Train a tiny Qwen3-architecture base model and tokenizer from text.",
        epilog="example: python3 make_base_model.py chats_train.jsonl --output base_model",
    )
    parser.add_argument("text", type=Path, nargs="+", help="conversations (.jsonl) or plain text")
    parser.add_argument("--output", type=Path, required=True, help="folder to write")
    parser.add_argument(
        "--max-steps",
        type=int,
        default=110,
        help="training steps (default 110); the same number gives the same model on a machine of any speed",
    )
    parser.add_argument(
        "--max-seconds",
        type=float,
        default=1800,
        help="end earlier, with a warning, on a machine too slow for the steps (default 1800)",
    )
    parser.add_argument("--vocab-size", type=int, default=2048)
    parser.add_argument("--hidden-size", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--context", type=int, default=2048, help="longest input of the model")
    parser.add_argument("--window", type=int, default=256, help="tokens per training example")
    parser.add_argument("--batch", type=int, default=8, help="examples per step")
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=42)
    return parser


def main(argv: list[str] | None = None) -> int:
    return exit_code(checked_run, parser().parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
