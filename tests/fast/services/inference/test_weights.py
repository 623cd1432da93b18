"""Weights read from folders, and those that are refused, with which words. Nothing of them is executed."""

import json
import os
import struct
from pathlib import Path

import pytest

from neocloud.core.untrusted.files import Folder
from neocloud.services.inference.public import Location, weights_digest
from neocloud.services.inference.reconcile import reader, weights
from neocloud.services.inference.reconcile.reader import FolderReader
from neocloud.services.inference.reconcile.weights import BadWeights
from tests.fast.services.inference.cloud import write_adapter, write_model, write_safetensors


def read_weights(path: Path) -> weights.Weights:
    with Folder.open(path) as folder:
        return weights.read_weights(folder)


def read_adapter(path: Path, base: weights.Weights) -> reader.Adapter:
    with Folder.open(path) as folder:
        return reader.read_adapter(folder, base)


def digest(path: Path) -> str:
    with Folder.open(path) as folder:
        return weights_digest(folder)


def refusal(folder: Path) -> str:
    with pytest.raises(BadWeights) as caught:
        read_weights(folder)
    return str(caught.value)


def test_a_whole_model(tmp_path: Path) -> None:
    found = read_weights(write_model(tmp_path / "model"))
    assert found.parameters == 2 * 64 + 256 and found.dtype == "bfloat16"
    assert found.module_names == {"q_proj", "lm_head"} and found.adaptable_modules == {"q_proj"}


def test_missing_parts_are_named(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    (folder / "tokenizer.json").unlink()
    assert "has no tokenizer" in refusal(folder)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    (folder / "tokenizer.json").write_text("{}")
    assert "has no *.safetensors; pytorch_model.bin is not supported" in refusal(folder)
    (folder / "config.json").write_text("{")
    assert "config.json is not valid JSON" in refusal(folder)


async def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(BadWeights, match="not a folder on this machine"):
        await FolderReader().read(Location(tmp_path / "nowhere"), None)


def test_an_adapter_s_folder_without_a_base_says_so(tmp_path: Path) -> None:
    assert "name its base model" in refusal(write_adapter(tmp_path / "adapter"))


@pytest.mark.parametrize(
    "number", ["abc", "9" * 4000, 10**30, -5, 1e400, [8]], ids=lambda each: str(each)[:5]
)
@pytest.mark.parametrize(
    "name",
    ["num_hidden_layers", "hidden_size", "max_position_embeddings", "head_dim", "num_key_value_heads"],
)
def test_a_number_that_no_model_has_is_refused_by_its_name(tmp_path: Path, name: str, number: object) -> None:
    assert f'"{name}"' in refusal(write_model(tmp_path / "model", **{name: number}))


def test_layers_whose_memory_no_status_can_hold_are_refused(tmp_path: Path) -> None:
    most = {"num_hidden_layers": 2**26, "head_dim": 2**26, "num_key_value_heads": 2**26}
    assert "too large" in refusal(write_model(tmp_path / "model", **most))


def test_shards_that_the_index_names_must_be_there(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}))
    assert "lacks model-2.safetensors" in refusal(folder)
    index.write_text(json.dumps({"weight_map": {"a": "../other/model.safetensors"}}))
    assert "outside of the folder" in refusal(folder)


def test_a_file_that_is_cut_off_is_told(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    assert "model.safetensors is truncated" in refusal(folder)
    file.write_bytes(struct.pack("<Q", 1 << 62))
    assert "is not a safetensors file" in refusal(folder)
    file.write_bytes(struct.pack("<Q", 4) + b"nope")
    assert "has a header that cannot be read" in refusal(folder)


def test_no_link_leads_out(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    (folder / "extra.json").symlink_to("/etc/passwd")
    assert "extra.json is a link out of the folder" in refusal(folder)
    (folder / "extra.json").unlink()
    (folder / "same.json").symlink_to("config.json")
    assert read_weights(folder).parameters


def test_the_digest_is_of_names_and_contents(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    before = digest(folder)
    os.utime(folder / "model.safetensors", (1, 1))
    assert digest(folder) == before
    with (folder / "model.safetensors").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\1")
    assert digest(folder) != before


def test_an_adapter(tmp_path: Path) -> None:
    base = read_weights(write_model(tmp_path / "model"))
    found = read_adapter(write_adapter(tmp_path / "adapter"), base)
    assert (found.rank, found.target_modules, found.parameters) == (4, ("q_proj",), 64)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"modules_to_save": ["lm_head"]}, "merge the adapter"),
        ({"r": 128}, "ranks from 1 to 64"),
        ({"r": 8}, "has rank 4 where adapter_config.json says 8"),
        ({"peft_type": "IA3"}, "LORA is served"),
        ({"use_dora": True}, "DoRA"),
        ({"bias": "all"}, "biases"),
        ({"width": 16}, "its base has 8: it was trained on another model"),
        ({"layer": 7}, "changes layer 7 and its base has 2"),
        ({"module": "w_pack"}, "changes w_pack, which its base does not have"),
        (
            {"module": "lm_head"},
            "changes lm_head, which the model server does not serve beside its base: merge",
        ),
    ],
)
def test_an_adapter_that_its_base_cannot_serve(tmp_path: Path, changes: dict, words: str) -> None:
    base = read_weights(write_model(tmp_path / "model"))
    folder = write_adapter(tmp_path / "adapter", **changes)
    with pytest.raises(BadWeights, match=words):
        read_adapter(folder, base)


def test_whole_layers_among_an_adapter_s_tensors_are_refused(tmp_path: Path) -> None:
    base = read_weights(write_model(tmp_path / "model"))
    folder = write_adapter(tmp_path / "adapter")
    write_safetensors(folder / "adapter_model.safetensors", {"base_model.model.lm_head.weight": (32, 8)})
    with pytest.raises(BadWeights, match="is not part of a LoRA adapter"):
        read_adapter(folder, base)
