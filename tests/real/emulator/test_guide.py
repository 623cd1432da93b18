"""The example in docs/guides/emulator.md runs as it is written there (SDK; issue: emulator)."""

import os
import re
import subprocess
import sys
from pathlib import Path

from neocloud.testing.emulator import Emulator
from tests import ROOT

GUIDE = ROOT / "docs" / "guides" / "emulator.md"


def test_the_example_of_the_guide_passes(neocloud_emulator: Emulator, tmp_path: Path) -> None:
    conftest, example = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    (tmp_path / "conftest.py").write_text(conftest)
    (tmp_path / "test_example.py").write_text(example)
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        env={**os.environ, **neocloud_emulator.environment},
        cwd=tmp_path,
        text=True,
        capture_output=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "1 passed" in ran.stdout
