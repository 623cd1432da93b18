"""A tiny base model, made once for all tests and kept between runs.

`.cache/tiny-model/<hash>`: the hash is of the recipe's files and of what is asked of it, so a changed recipe
makes another. Several test runs may ask at once; one makes it, the others wait.
"""

import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests import ROOT

RECIPES = ROOT / "recipes"
MAKERS = (
    "make_dataset.py",
    "dataset_convert.py",
    "dataset_split.py",
    "make_base_model.py",
    "bank_topics.json",
)
STEPS = ("--max-steps", "60", "--max-seconds", "600")
"""By steps, not seconds: a busy machine trains the same model."""


def tiny_model(cache: Path = ROOT / ".cache") -> Path:
    """The folder of the model, with config, weights, tokenizer and chat template."""
    digest = hashlib.sha256(" ".join(STEPS).encode())
    for name in MAKERS:
        digest.update((RECIPES / name).read_bytes())
    folder = cache / "tiny-model" / digest.hexdigest()[:12]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=folder.parent) as work:
                _make(Path(work)).rename(folder)
    return folder


def _make(work: Path) -> Path:
    """make_base_model names its output last, so what has that name is whole."""
    _run(work, "make_dataset.py", "--output", "bank.csv")
    _run(work, "dataset_convert.py", "bank.csv")
    _run(work, "dataset_split.py", "bank.jsonl", "--ratio", "0.9", "--rand-sort")
    _run(work, "make_base_model.py", "bank_train.jsonl", "--output", "model", *STEPS)
    return work / "model"


def _run(work: Path, script: str, *arguments: str) -> None:
    command: Sequence[str] = (sys.executable, str(RECIPES / script), *arguments)
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}  # threads that wait for each other gain nothing here
    done = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False, env=alone)
    assert done.returncode == 0, f"{script}: {done.stderr[-2000:]}"
