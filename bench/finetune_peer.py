#!/usr/bin/env python3
"""Compare the fine-tuning recipe with TRL's SFTTrainer: tokens per second, and the loss on held-out data.

    scripts/install-client trl
    python bench/finetune_peer.py --model FOLDER [--threads N] [--conversations N] [--repeats N]

Both train one pass over the same conversations with the same token ids, labels, LoRA, rate and rows per step,
packed and in float32, and take turns, so that a change in the load of the machine hits both. TRL gets its
fastest settings: no recomputed activations, one row per pass. Its adapter and ours are evaluated by the same
code, transformers' own loss on conversations one by one.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from finetune import RECIPES, python

sys.path.insert(0, str(RECIPES))

from conversations import BadRecords, read_conversations
from lora_model import load_base, with_adapter
from tokenized_data import TokenizedData, pack, plain_row, write_rows

TRL = RECIPES.parent / ".cache" / "clients" / "trl"
CONTEXT = 512
HELD_OUT = 12


@dataclass(frozen=True)
class Measured:
    tokens_per_second: float
    tokens_per_cpu_second: float
    """The same in processor time: for a machine that does other work."""
    loss: float


@dataclass(frozen=True)
class Data:
    folder: Path
    model: str
    examples: list[dict[str, list[int]]]
    packed: Path
    rows: int
    held_out: TokenizedData


def prepare(folder: Path, model: str, source: Path | None, conversations: int) -> Data:
    if source is None:
        source = folder / "bank.csv"
        python("make_dataset.py", "--output", source)
    chats, plain = folder / "chats.jsonl", folder / "plain.arrow"
    python("dataset_convert.py", source, "--output", chats)
    all_chats = list(read_conversations(chats, BadRecords(skip=False)))[: conversations + HELD_OUT]
    chats.write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in all_chats), encoding="utf-8")
    tokenize = ("dataset_tokenize.py", chats, "--model", model, "--context", str(CONTEXT))
    python(*tokenize, "--output", plain)
    data = TokenizedData.open(plain)
    table = data.table.to_pydict()
    pairs = list(zip(table["input_ids"], table["labels"], strict=True))
    train, rest = pairs[:-HELD_OUT], pairs[-HELD_OUT:]
    facts = data.facts | {"packed": True, "tokens": sum(len(ids) for ids, _ in train)}
    packed, held_out = folder / "packed.arrow", folder / "held_out.arrow"
    rows = write_rows(packed, pack(train, CONTEXT), facts)
    write_rows(held_out, map(plain_row, rest), data.facts)
    examples = [{"input_ids": ids, "labels": labels} for ids, labels in train]
    return Data(folder, model, examples, packed, rows, TokenizedData.open(held_out))


def ours(data: Data, output: Path, given: argparse.Namespace) -> dict[str, Any]:
    settings = {
        "per_device_train_batch_size": given.rows, "learning_rate": given.learning_rate, "warmup_ratio": 0,
        "lr_scheduler_type": "constant", "save_steps": 0, "seed": given.seed,
        "mixed_precision": "bf16" if given.bf16 else "no",
    }  # fmt: skip
    flags = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    places = ["--model", data.model, "--data", str(data.packed), "--output-dir", str(output)]
    start([sys.executable, str(RECIPES / "finetune.py"), *places, *flags], given.threads)
    return json.loads((output / "adapter" / "training_summary.json").read_text(encoding="utf-8"))


def trl(data: Data, output: Path, given: argparse.Namespace) -> dict[str, Any]:
    settings = {
        "model": data.model, "output": str(output), "context": CONTEXT, "rows": given.rows,
        "steps": -(-data.rows // given.rows), "learning_rate": given.learning_rate, "seed": given.seed,
        "threads": given.threads, "bf16": given.bf16, "examples": data.examples,
    }  # fmt: skip
    script = Path(__file__).parent / "peers" / "trl_sft.py"
    start([str(TRL / "bin" / "python"), str(script)], given.threads, json.dumps(settings))
    found = json.loads((output / "summary.json").read_text(encoding="utf-8"))
    if found["rows"] != data.rows:
        raise SystemExit(f"TRL packed {found['rows']} rows, the recipe {data.rows}: not the same steps")
    return found


def start(command: list[str], threads: int, given: str | None = None) -> None:
    """Run to the end; TRL's environment has its packages alone, the others are those of this one."""
    environment = os.environ | {
        "OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": sysconfig.get_path("purelib"),
    }  # fmt: skip
    done = subprocess.run(command, input=given, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr[-4000:]}")


@torch.inference_mode()
def loss(data: Data, adapter: Path | None) -> float:
    model = load_base(data.model)
    model = (with_adapter(model, adapter) if adapter else model).eval()
    total, labels = 0.0, 0
    for row in range(len(data.held_out)):
        batch = data.held_out.batch([row], data.held_out.facts["pad_token_id"])
        total += model(**batch, use_cache=False, num_items_in_batch=1).loss.item()
        labels += int((batch["labels"] != -100).sum())
    return total / labels


def measure(run: Any, data: Data, output: Path, given: argparse.Namespace) -> Measured:
    summary = run(data, output, given)
    tokens, seconds, used = (summary[name] for name in ("tokens", "seconds", "processor_seconds"))
    return Measured(tokens / seconds, tokens / used, loss(data, output / "adapter"))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="folder of a model")
    parser.add_argument("--data", type=Path, help="any file dataset_convert.py reads (default: bank data)")
    parser.add_argument("--conversations", type=int, default=64, help="to train on (default 64)")
    parser.add_argument("--rows", type=int, default=4, help="packed rows per optimiser step (default 4)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--learning-rate", type=float, default=5e-4)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--bf16", action="store_true", help="both in bf16 instead of float32")
    given = parser.parse_args()
    if not (TRL / "bin" / "python").exists():
        raise SystemExit("TRL is not installed: run scripts/install-client trl")
    found: dict[str, list[Measured]] = {"ours": [], "TRL": []}
    with tempfile.TemporaryDirectory(prefix="bench-finetune-") as name:
        data = prepare(Path(name), given.model, given.data, given.conversations)
        count = sum(len(each["input_ids"]) for each in data.examples)
        print(
            f"{count} tokens in {data.rows} rows, {given.threads} threads; loss before {loss(data, None):.4f}"
        )
        for number in range(given.repeats):
            for label, run in (("ours", ours), ("TRL", trl)):
                result = measure(run, data, Path(name) / f"{label}-{number}", given)
                found[label].append(result)
                print(f"{label:<5}{result}, load {os.getloadavg()[0]:.1f}", flush=True)
    ratios = {}
    for value in ("tokens_per_second", "tokens_per_cpu_second", "loss"):
        ours_median, trl_median = (
            statistics.median(getattr(each, value) for each in found[label]) for label in ("ours", "TRL")
        )
        ratios[value] = ours_median / trl_median
        print(f"{value:<24}{ours_median:>10.3f} to TRL's {trl_median:>10.3f}: {ratios[value]:.3f}")


if __name__ == "__main__":
    main()
