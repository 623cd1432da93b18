"""Without torch and its like, every recipe explains itself and says in one line what to install."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from recipe_errors import IMPORTED, PACKAGES
from tests import ROOT

RECIPES = ROOT / "recipes"
USES = {
    "dataset_tokenize.py": ["chats.jsonl", "--model", "m"],
    "evaluator.py": ["--model", "m", "--adapter", "a", "--data", "d.jsonl"],
    "finetune.py": ["--model", "m", "--data", "d.arrow", "--output-dir", "o"],
    "make_base_model.py": ["chats.jsonl", "--output", "o"],
    "merge_adapter.py": ["--model", "m", "--adapter", "a", "--output", "o"],
}
RUN = f"""
import runpy, sys
sys.path.insert(0, {str(RECIPES)!r})
sys.modules.update(dict.fromkeys({sorted(IMPORTED)!r}))  # None: as if it were not installed
for script, arguments in {USES!r}.items():
    for given in (["--help"], arguments):
        sys.argv = [script, *given]
        try:
            runpy.run_path({str(RECIPES)!r} + "/" + script, run_name="__main__")
        except SystemExit as ended:
            print("ended:", script, ended.code, flush=True)
"""


def test_help_works_and_a_use_says_what_to_install(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", RUN], capture_output=True, text=True, cwd=tmp_path, timeout=300, check=False
    )
    assert ran.returncode == 0, ran.stderr
    ended = [line for line in ran.stdout.splitlines() if line.startswith("ended:")]
    assert ended == [f"ended: {script} {code}" for script in USES for code in (0, 1)]
    assert all(f"usage: {script}" in ran.stdout for script in USES)
    said = ran.stderr.splitlines()
    assert len(said) == len(USES)
    for line, script in zip(said, USES, strict=True):
        assert line.startswith(f"{script}: error: the package ")
        assert line.endswith(f" is not installed; run `pip install {PACKAGES}`")
