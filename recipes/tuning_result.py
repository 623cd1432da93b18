"""Write the result of a fine-tuning job: the folder that is served with its card, lineage and metrics.

It reads the output of the steps of tuning_job.py; it trains and measures nothing itself.
"""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from conversations import atomic_text
from job_record import ADAPTER, describe, trained

NOT_RECORDED = "not_recorded"
MEASURED = ("reward", "reward_std", "kl", "answer_tokens", "reward_margin", "preference_accuracy",
            "valid_reward_margin", "valid_preference_accuracy")  # fmt: skip
"""Measurements of the methods beside supervised training, at a step."""
KINDS = {"supervised": "fine-tuned", "dpo": "tuned on preferences", "reinforcement": "tuned on rewards"}


def pack_result(folder: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Write `result/`, `lineage.json` and `metrics.csv`; return the figures of the run."""
    is_adapter = trained(settings) == ADAPTER
    source = folder / ("merged" if settings["merge"] and is_adapter else f"finetune/{trained(settings)}")
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    metrics = read_metrics(folder / "finetune" / "metrics.jsonl")
    figures = {
        "trained_tokens": max((row.get("tokens", 0) for row in metrics), default=0),
        "conversations": report["details"]["test_conversations"],
        **measured(report),
    }
    write_csv(folder / "metrics.csv", metrics)
    lineage = describe(folder, settings, report, metrics)
    with atomic_text(folder / "lineage.json") as file:
        json.dump(lineage, file, indent=1)
    result, partial = folder / "result", folder / ".result.partial"
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(source, partial)
    (partial / "README.md").write_text(card(settings, figures, lineage), encoding="utf-8")
    if is_adapter and not settings["merge"]:
        _name_the_base(partial / "adapter_config.json", settings["model_name"])
    shutil.rmtree(result, ignore_errors=True)
    partial.rename(result)
    return figures


def measured(report: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures of both models: rewards where a grader scored them, else perplexities."""
    base, tuned = report["base_model"], report["finetuned_model"]
    if "reward" in base:
        return {"base_reward": base["reward"], "fine_tuned_reward": tuned["reward"]}
    return {
        "base_perplexity": base["perplexity"],
        "fine_tuned_perplexity": tuned["perplexity"],
        "perplexity_improvement": report["comparison"]["perplexity"],
    }


def read_metrics(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write_csv(path: Path, metrics: list[dict[str, Any]]) -> None:
    """Write one line for each step with the values measured after it."""
    by_step: dict[int, dict[str, Any]] = {}
    for row in metrics:
        by_step.setdefault(row["step"], {}).update(row)
    known = dict.fromkeys(name for row in metrics for name in row)
    names = ["step", "train_loss", "valid_loss", *(name for name in MEASURED if name in known)]
    with atomic_text(path) as file:
        writer = csv.DictWriter(file, names, restval="", extrasaction="ignore")
        writer.writeheader()
        writer.writerows(by_step[step] for step in sorted(by_step))


def card(settings: Mapping[str, Any], figures: Mapping[str, Any], lineage: Mapping[str, Any]) -> str:
    """Return the model card, in the form that model hubs read."""
    kind = "LoRA adapter" if trained(settings) == ADAPTER else "All weights"
    kind = "Merged weights" if settings["merge"] and trained(settings) == ADAPTER else kind
    tuned = KINDS[settings.get("method", "supervised")]
    tags = ["lora", "fine-tuned"] if trained(settings) == ADAPTER else ["fine-tuned"]
    results = [(name, value) for name, value in figures.items() if name.startswith(("base_", "fine_tuned_"))]
    base = lineage["base"]
    license_line = f"license: {json.dumps(base['license'])}\n" if "license" in base else ""
    return f"""---
base_model: {settings["model_name"]}
{license_line}tags: [{", ".join(tags)}]
---
# {settings["name"]}

{kind}, {tuned} from {settings["model_name"]}.

| base model | |
|---|---|
| name | {settings["model_name"]} |
| license | {_cell(base.get("license"))} |
| SHA-256 of the weights | {_cell(base.get("sha256"))} |

| data | |
|---|---|
{_table(_data_rows(lineage["data"]))}

| evaluation on held-out conversations | |
|---|---|
| conversations | {figures["conversations"]} |
{_table({_said(name): f"{value:.4f}" for name, value in results})}

| training | |
|---|---|
| trained tokens | {figures["trained_tokens"]} |
{_table(_training_rows(lineage))}
"""


def _said(figure: str) -> str:
    """Return the words for a figure of one of the models."""
    whose = "the base" if figure.startswith("base_") else "this model"
    return f"{figure.rpartition('_')[2]} of {whose}"


def _data_rows(data: Mapping[str, Any]) -> dict[str, Any]:
    source, held_out = data["source"], data["split"]["held_out"]
    split = (
        f"split off with seed {data['split']['seed']}" if held_out == "tenth" else "from a file of its own"
    )
    rows = {
        "training file": f"{source['bytes']} bytes, SHA-256 {source['sha256']}",
        "trained on": _part(data.get("training")),
        "held out": f"{_part(data.get('held_out'))}, {split}",
    }
    if "validation_source" in data:
        rows["validation file"] = f"SHA-256 {data['validation_source']['sha256']}"
    return rows | {f"left out: {name}": count for name, count in data["left_out"].items() if count}


def _part(part: Mapping[str, Any] | None) -> str:
    return f"{part['rows']} conversations, SHA-256 {part['sha256']}" if part else NOT_RECORDED


def _training_rows(lineage: Mapping[str, Any]) -> dict[str, Any]:
    machine = lineage["machine"]
    kept = [str(each["step"]) for each in lineage["checkpoints"] if each["is_kept"]]
    return {
        "recipe": f"SHA-256 {lineage['recipe']['sha256']}",
        **{name: version for name, version in lineage["recipe"]["packages"].items()},
        "processor": machine["processor"],
        "device": machine["device"],
        "nodes, processes": f"{machine['node_count']}, {machine['processes']}",
        "checkpoints that are kept": ", ".join(kept),
        **lineage["settings"],
    }


def _table(rows: Mapping[str, Any]) -> str:
    return "\n".join(f"| {name} | {_cell(value)} |" for name, value in rows.items())


def _cell(value: Any) -> str:
    """Return the text of a cell of a table, on one line whatever it holds."""
    text = " ".join(str("" if value is None else value).split())
    return text.replace("|", "\\|") or NOT_RECORDED


def _name_the_base(config: Path, name: str) -> None:
    """Store the name of the base: its path in the job is not valid elsewhere."""
    content = json.loads(config.read_text(encoding="utf-8"))
    content["base_model_name_or_path"] = name
    config.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
