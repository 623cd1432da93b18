"""The image of SmolLM2 says what it needs."""

import subprocess
import sys
from pathlib import Path

from tests import ROOT

BUILD = ROOT / "images" / "smollm2" / "build"


def test_without_the_shared_root_it_says_what_to_build_first(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, BUILD, "--output", tmp_path], capture_output=True, text=True)
    assert done.returncode == 1 and "neo image build jail" in done.stderr
    assert not (tmp_path / "smollm2" / "image.json").exists()
    assert not (tmp_path / "smollm2" / ".building").exists(), "it leaves nothing that counts as a build"
