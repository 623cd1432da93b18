"""The images of models say what they need."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT


@pytest.mark.parametrize("name", ["smollm2", "all-minilm-l6-v2"])
def test_without_the_shared_root_it_says_what_to_build_first(tmp_path: Path, name: str) -> None:
    build = ROOT / "images" / name / "build"
    done = subprocess.run([sys.executable, build, "--output", tmp_path], capture_output=True, text=True)
    assert done.returncode == 1 and "neo image build jail" in done.stderr
    assert not (tmp_path / name / "image.json").exists()
    assert not (tmp_path / name / ".building").exists(), "it leaves nothing that counts as a build"
