"""Describe a fine-tuning job that has ended: data, recipe, settings, machine, checkpoints and weights.

The description, `lineage.json` in the job's folder, holds what is needed to explain the model and to build
it again. A fact that cannot be found is left out. It must not change what the steps of tuning_job.py made.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import os
import platform
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

FORMAT = 1
PACKAGES = ("torch", "transformers", "peft", "tokenizers", "safetensors", "bitsandbytes")
READ_BYTES = 1 << 20
CODE = Path(__file__).parent
CODE_ENDINGS = (".py", ".sh", ".sbatch")
ADAPTER, WHOLE = "adapter", "model"
WEIGHTS = {ADAPTER: "adapter_model.safetensors", WHOLE: "model.safetensors"}
_PARTS = {"source": "training_file", "validation_source": "validation_file", "training": "chats_train",
          "held_out": "chats_test"}  # fmt: skip


def describe(
    folder: Path, settings: Mapping[str, Any], report: Mapping[str, Any], metrics: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return the description of a job with these settings, evaluation report and metrics."""
    return {
        "format": FORMAT,
        "attempt": settings.get("attempt", 1),
        "recipe": {"sha256": code_digest(), "packages": packages()},
        "base": _known(settings, name="model_name", sha256="model_digest", license="model_license"),
        "data": _data(folder, settings),
        "seed": settings["seed"],
        "settings": {**settings["arguments"], **_known(settings, "method", "context", "packing", "merge")},
        "machine": _machine(folder, settings, report),
        "checkpoints": _checkpoints(folder, metrics),
        "adapter_sha256": sha256(folder / "finetune" / trained(settings) / WEIGHTS[trained(settings)]),
    }


def trained(settings: Mapping[str, Any]) -> str:
    """Return the folder, in `finetune`, of what the training writes at its end."""
    return ADAPTER if settings.get("lora", True) else WHOLE


def code_digest() -> str:
    """Return a digest of the names and contents of the recipes, whose files change with their version."""
    digest = hashlib.sha256()
    for path in sorted(each for each in CODE.iterdir() if each.name.endswith(CODE_ENDINGS)):
        digest.update(f"{path.name}\0{sha256(path)}\n".encode())
    return digest.hexdigest()


def packages() -> dict[str, str]:
    found: dict[str, str] = {}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(READ_BYTES):
            digest.update(block)
    return digest.hexdigest()


def _data(folder: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for part, name in _PARTS.items():
        path = folder / f"{name}.jsonl"
        if path.is_file():
            found[part] = {"sha256": sha256(path), "bytes": path.stat().st_size, "rows": _rows(path)}
    if "validation_source" in found:
        found["split"] = {"held_out": "validation_file"}
    else:
        found["split"] = {"held_out": "tenth", "seed": settings["seed"]}
    found["left_out"] = dict(_left_out(folder, found))
    return found


def _left_out(folder: Path, parts: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield what of the data was not trained on, or only in part: conversations, by the reason."""
    chats = folder / "chats.jsonl"
    if chats.is_file():  # split by the job itself
        usable = _rows(chats)
        yield "not_learnt", parts["source"]["rows"] - usable
        yield "held_out_copies", usable - parts["training"]["rows"] - parts["held_out"]["rows"]
    facts = _tokenized_facts(folder / "chats_train.arrow")
    for name in ("truncated", "dropped", "without_labels"):
        if name in facts:
            yield name, facts[name]


def _tokenized_facts(path: Path) -> Mapping[str, Any]:
    """Return the facts that dataset_tokenize.py wrote; {} where they cannot be read."""
    try:
        import pyarrow  # noqa: PLC0415 - only a job that has ended needs it

        with pyarrow.memory_map(str(path)) as source:
            schema = pyarrow.ipc.open_file(source).schema
    except (ImportError, OSError, ValueError):
        return {}
    return json.loads((schema.metadata or {}).get(b"tokenized", b"{}"))


def _rows(path: Path) -> int:
    with path.open("rb") as file:
        return sum(1 for line in file if line.strip())


def _machine(folder: Path, settings: Mapping[str, Any], report: Mapping[str, Any]) -> dict[str, Any]:
    summary = json.loads(
        (folder / "finetune" / trained(settings) / "training_summary.json").read_text(encoding="utf-8")
    )
    return {
        "nodes": os.environ.get("SLURM_JOB_NODELIST") or platform.node(),
        "node_count": settings.get("nodes", 1),
        "processes": summary["processes"],
        "threads": os.environ.get("OMP_NUM_THREADS", ""),
        "processor": _processor(),
        "device": report.get("details", {}).get("device", ""),
    }


def _processor() -> str:
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.machine()


def _checkpoints(folder: Path, metrics: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return all that were written, with the loss on held-out rows, and which of them are still there."""
    return [
        {
            "step": row["step"],
            "time": row["time"],
            "valid_loss": row["valid_loss"],
            "is_kept": (folder / "finetune" / f"checkpoint-{row['step']:06d}").is_dir(),
        }
        for row in metrics
        if "valid_loss" in row
    ]


def _known(settings: Mapping[str, Any], *same: str, **names: str) -> dict[str, Any]:
    """Return the settings that are there, under these names."""
    wanted = {**{name: name for name in same}, **names}
    return {name: settings[key] for name, key in wanted.items() if settings.get(key) not in (None, "")}
