"""Models that the model server cannot load, or only with code of their maker, are refused."""

import json
import re
from pathlib import Path

import pytest
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from neocloud.core.untrusted.files import Folder
from neocloud.services.inference import architectures
from neocloud.services.inference.architectures import known_architectures
from neocloud.services.inference.reconcile import weights
from neocloud.services.inference.reconcile.weights import BadWeights
from tests import ROOT
from tests.fast.services.inference.cloud import write_model

LIST = Path(architectures.__file__).with_name("architectures.txt")
REMOTE = {"AutoModelForCausalLM": "modeling_x.XForCausalLM"}


def changed_model(path: Path, **changes: object) -> Path:
    folder = write_model(path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    return folder


def read(path: Path) -> weights.Weights:
    with Folder.open(path) as folder:
        return weights.read_weights(folder)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architectures": ["XForCausalLM"]}, "which the model server does not know"),
        ({"architectures": ["XForCausalLM"], "auto_map": REMOTE}, "needs code of the model's maker"),
        ({"architectures": ["x" * 10_000]}, "x" * 100 + "...'"),
    ],
)
def test_what_needs_code_or_is_not_known_is_refused_in_one_line(
    tmp_path: Path, changes: dict[str, object], words: str
) -> None:
    with pytest.raises(BadWeights) as caught:
        read(changed_model(tmp_path / "model", **changes))
    assert words in str(caught.value) and "\n" not in str(caught.value) and len(str(caught.value)) < 400


def test_a_known_model_is_read_and_its_code_is_not(tmp_path: Path) -> None:
    """Many models have both: the libraries' own class is used."""
    folder = changed_model(tmp_path / "model", auto_map=REMOTE)
    (folder / "modeling_x.py").write_text("raise SystemExit('run')")
    assert read(folder).architecture.name == "Qwen3ForCausalLM"


def test_the_list_is_of_the_installed_versions() -> None:
    [vllm] = re.findall(r'"vllm==([^"]+)"', (ROOT / "pyproject.toml").read_text())
    assert f"from vllm {vllm};" in LIST.read_text().splitlines()[0], "run scripts/write-architectures"
    names = {name for name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values() if isinstance(name, str)}
    assert not names - known_architectures()
