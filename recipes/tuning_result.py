"""Write the result of a fine-tuning job: the folder that is served, a model card, and a table of metrics.

It reads the output of the steps of tuning_job.py; it trains and measures nothing itself.
"""

from __future__ import annotations

import csv
import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from conversations import atomic_text

READ_BYTES = 1 << 20


def pack_result(folder: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Write `result/` and `metrics.csv`; return the figures of the run."""
    source = folder / ("merged" if settings["merge"] else "finetune/adapter")
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    metrics = read_metrics(folder / "finetune" / "metrics.jsonl")
    figures = {
        "trained_tokens": max((row.get("tokens", 0) for row in metrics), default=0),
        "base_perplexity": report["base_model"]["perplexity"],
        "fine_tuned_perplexity": report["finetuned_model"]["perplexity"],
        "perplexity_improvement": report["comparison"]["perplexity"],
        "conversations": report["details"]["test_conversations"],
    }
    write_csv(folder / "metrics.csv", metrics)
    result, partial = folder / "result", folder / ".result.partial"
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(source, partial)
    (partial / "README.md").write_text(card(folder, settings, figures), encoding="utf-8")
    if not settings["merge"]:
        _name_the_base(partial / "adapter_config.json", settings["model_name"])
    shutil.rmtree(result, ignore_errors=True)
    partial.rename(result)
    return figures


def read_metrics(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write_csv(path: Path, metrics: list[dict[str, Any]]) -> None:
    """Write one line for each step with the values measured after it."""
    by_step: dict[int, dict[str, Any]] = {}
    for row in metrics:
        by_step.setdefault(row["step"], {}).update(row)
    names = ["step", "train_loss", "valid_loss"]
    with atomic_text(path) as file:
        writer = csv.DictWriter(file, names, restval="", extrasaction="ignore")
        writer.writeheader()
        writer.writerows(by_step[step] for step in sorted(by_step))


def card(folder: Path, settings: Mapping[str, Any], figures: Mapping[str, Any]) -> str:
    """Return the model card, in the form that model hubs read."""
    data = folder / "training_file.jsonl"
    kind = "Merged weights" if settings["merge"] else "LoRA adapter"
    shown = {**settings["arguments"], "context": settings["context"], "packing": settings["packing"]}
    rows = "\n".join(f"| {name} | {value} |" for name, value in shown.items())
    return f"""---
base_model: {settings["model_name"]}
tags: [lora, fine-tuned]
---
# {settings["name"]}

{kind}, fine-tuned from {settings["model_name"]} (weights {settings["model_digest"] or "not hashed"}).

| | |
|---|---|
| training data | {data.stat().st_size} bytes, SHA-256 {_sha256(data)} |
| trained tokens | {figures["trained_tokens"]} |
| validation conversations | {figures["conversations"]} |
| perplexity of the base on them | {figures["base_perplexity"]:.4f} |
| perplexity of this model on them | {figures["fine_tuned_perplexity"]:.4f} |

| setting | value |
|---|---|
{rows}
"""


def _name_the_base(config: Path, name: str) -> None:
    """Store the name of the base: its path in the job is not valid elsewhere."""
    content = json.loads(config.read_text(encoding="utf-8"))
    content["base_model_name_or_path"] = name
    config.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(READ_BYTES):
            digest.update(block)
    return digest.hexdigest()
