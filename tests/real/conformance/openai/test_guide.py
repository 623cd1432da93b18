"""The snippets of docs/guides/inference.md, as they stand there, in the environment that it sets (IAC-03,
AIS-02).

Its `neo` lines are run by the tests of the command line and of tests/e2e/inference.
"""

import json
import re
import sys
from pathlib import Path

import pytest

from tests.real.conformance.openai.conftest import ROOT, InstalledClients, Studio

GUIDE = ROOT / "docs" / "guides" / "inference.md"
SNIPPETS = re.findall(r"^```(sh|python|javascript)\n(.*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
CLIENTS = {"langchain_openai": "langchain", "import litellm": "litellm"}


def test_the_guide_shows_every_client() -> None:
    text = "".join(code for _, code in SNIPPETS)
    assert all(word in text for word in ("curl", "from openai", 'from "openai"', *CLIENTS))


@pytest.mark.parametrize(
    ("language", "code"), SNIPPETS, ids=[f"{n}-{kind}" for n, (kind, _) in enumerate(SNIPPETS)]
)
def test_a_snippet_runs(
    studio: Studio, installed: InstalledClients, tmp_path: Path, language: str, code: str
) -> None:
    client = next((name for word, name in CLIENTS.items() if word in code), "")
    if language == "sh":
        said = studio.run("bash", "-euc", code)
    elif language == "javascript":
        (tmp_path / "node_modules").symlink_to(installed("openai-js") / "node_modules")
        (tmp_path / "ask.mjs").write_text(code)
        said = studio.run("node", tmp_path / "ask.mjs")
    else:
        python = installed(client) / "bin" / "python" if client else sys.executable
        said = studio.run(python, "-c", code, LITELLM_LOCAL_MODEL_COST_MAP="True")
    if "rerank" in code:
        assert [each["index"] for each in json.loads(said)["results"]] in ([0], [1])
    elif "embedding" in code:
        assert re.fullmatch(r"\d+( \d+)?\n", said) and int(said.split()[0]) > 1
    else:
        assert " word word word word word" in said
