"""An adapter is compared with its base tensor by tensor when it is added: nothing half-applied is served."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neocloud.core.untrusted.files import Folder
from neocloud.services.inference.reconcile import weights
from neocloud.services.inference.reconcile.reader import Adapter, read_adapter
from neocloud.services.inference.reconcile.weights import BadWeights
from tests.fast.services.inference.cloud import ADAPTER_CONFIG, write_model, write_safetensors

Shapes = dict[str, tuple[int, ...]]
PREFIX = "base_model.model."
PATHS = [f"model.layers.{layer}.self_attn.{name}" for layer in range(2) for name in ("q_proj", "o_proj")]


def base_tensors() -> Shapes:
    """Queries are wider than the model, as in many real ones."""
    sides = {"q_proj": (16, 8), "o_proj": (8, 16)}
    return {f"{path}.weight": sides[path.rpartition(".")[2]] for path in PATHS} | {"lm_head.weight": (32, 8)}


def adapter_tensors() -> Shapes:
    found: Shapes = {}
    for path in PATHS:
        outputs, inputs = base_tensors()[f"{path}.weight"]
        found[f"{PREFIX}{path}.lora_A.weight"] = (4, inputs)
        found[f"{PREFIX}{path}.lora_B.weight"] = (outputs, 4)
    return found


def renamed(old: str, new: str) -> Shapes:
    return {name.replace(old, new): shape for name, shape in adapter_tensors().items()}


def some_renamed(part: str, old: str, new: str) -> Shapes:
    """Only those with `part` in their name."""
    return {
        name.replace(old, new) if part in name else name: shape for name, shape in adapter_tensors().items()
    }


def read(
    folder: Path, tensors: Shapes, base: Shapes | None = None, config: dict[str, Any] | None = None
) -> Adapter:
    model = write_model(folder / "model")
    write_safetensors(model / "model.safetensors", base or base_tensors())
    adapter = folder / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps({**ADAPTER_CONFIG, **(config or {})}))
    write_safetensors(adapter / "adapter_model.safetensors", tensors)
    with Folder.open(model) as opened, Folder.open(adapter) as adapter_folder:
        return read_adapter(adapter_folder, weights.read_weights(opened))


def refusal(
    folder: Path, tensors: Shapes, base: Shapes | None = None, config: dict[str, Any] | None = None
) -> str:
    with pytest.raises(BadWeights) as caught:
        read(folder, tensors, base, config)
    return str(caught.value)


@pytest.mark.parametrize("prefix", [PREFIX, ""])
def test_an_adapter_of_the_base_is_read(tmp_path: Path, prefix: str) -> None:
    found = read(tmp_path, renamed(PREFIX, prefix))
    assert found.target_modules == ("o_proj", "q_proj")


def test_names_around_a_language_model_may_be_nested_otherwise(tmp_path: Path) -> None:
    base = {name.replace("model.", "language_model.model."): each for name, each in base_tensors().items()}
    assert read(tmp_path, renamed("model.layers", "model.language_model.layers"), base)


def test_weights_that_were_saved_without_their_head(tmp_path: Path) -> None:
    base = {name.removeprefix("model."): shape for name, shape in base_tensors().items()}
    assert read(tmp_path, adapter_tensors(), base)


FIRST = f"{PREFIX}model.layers.0.self_attn.q_proj.lora_A"


@pytest.mark.parametrize(
    ("tensors", "first"),
    [
        (
            renamed("model.layers", "model.language_model.layers"),
            "model.language_model.layers.0.self_attn.q_proj",
        ),
        (renamed("model.layers", "transformer.h"), "transformer.h.0.self_attn.q_proj"),
        (renamed(f"{PREFIX}model.layers", f"{PREFIX}layers"), f"{PREFIX}layers.0.self_attn.q_proj"),
        (renamed("self_attn", "attention"), "model.layers.0.attention.q_proj"),
        (renamed("self_attn", "mlp"), "model.layers.0.mlp.q_proj"),
        (some_renamed("o_proj", "self_attn", "mlp"), "model.layers.0.mlp.o_proj"),
        (
            some_renamed("layers.1", "model.layers", "model.decoder.layers"),
            "model.decoder.layers.1.self_attn.q_proj",
        ),
        (renamed("model.layers", "module.model.layers"), "module.model.layers.0.self_attn.q_proj"),
        (renamed("layers.1.", "layers.7."), "changes layer 7 and its base has 2"),
        (renamed("layers.1.", "layers.01."), "model.layers.01.self_attn.q_proj"),
    ],
)
def test_what_the_base_does_not_have_is_refused_with_the_first_name(
    tmp_path: Path, tensors: Shapes, first: str
) -> None:
    assert first in refusal(tmp_path, tensors)


def changed(name: str, shape: tuple[int, ...]) -> Shapes:
    return {**adapter_tensors(), f"{PREFIX}model.layers.1.self_attn.{name}.weight": shape}


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        (changed("q_proj.lora_A", (4, 16)), "q_proj.lora_A.weight is for a width of 16 and its base has 8"),
        (changed("q_proj.lora_B", (8, 4)), "q_proj.lora_B.weight is for a width of 8 and its base has 16"),
        (changed("o_proj.lora_A", (4, 8)), "o_proj.lora_A.weight is for a width of 8 and its base has 16"),
        (changed("o_proj.lora_B", (8, 2)), "o_proj.lora_B.weight has rank 2"),
        (changed("o_proj.lora_B", (8,)), "is not a matrix"),
        (changed("o_proj.lora_A", (4, 16, 1)), "is not a matrix"),
        (renamed("lora_A.weight", "lora_A.default.weight"), "save it with save_pretrained"),
        (renamed(".weight", ".default.weight"), "name of an adapter in it (default)"),
        (renamed("lora_A.weight", "lora_embedding_A"), "is not lora_A.weight or lora_B.weight"),
        ({**adapter_tensors(), f"{FIRST}.bias": (4,)}, "is not lora_A.weight"),
        (
            {**adapter_tensors(), f"{FIRST.replace('lora_A', 'lora_magnitude_vector')}": (4,)},
            "is not lora_A.weight",
        ),
        ({**adapter_tensors(), **renamed(PREFIX, "")}, "lora_A of model.layers.0.self_attn.q_proj twice"),
        (
            {
                name: shape
                for name, shape in adapter_tensors().items()
                if "layers.1.self_attn.o_proj.lora_B" not in name
            },
            "lacks lora_B of model.layers.1.self_attn.o_proj",
        ),
        ({}, "changes nothing"),
    ],
)
def test_shapes_names_and_pairs_are_checked(tmp_path: Path, tensors: Shapes, words: str) -> None:
    assert words in refusal(tmp_path, tensors)


@pytest.mark.parametrize("name", ["alpha_pattern", "rank_pattern"])
def test_an_alpha_or_rank_of_its_own_for_a_module_is_refused(tmp_path: Path, name: str) -> None:
    assert name in refusal(tmp_path, adapter_tensors(), config={name: {"q_proj": 8}})
    assert read(tmp_path / "without", adapter_tensors(), config={name: {}})


PARTS = st.sampled_from(
    [
        "base_model",
        "model",
        "layers",
        "0",
        "1",
        "9" * 30,
        "self_attn",
        "q_proj",
        "lora_A",
        "lora_B",
        "weight",
        "default",
        "",
        "é",
        "--x",
    ]
)
NAMES = st.lists(PARTS, max_size=9).map(".".join) | st.sampled_from(sorted(adapter_tensors()))
NUMBERS = st.sampled_from([0, 4, 8, 16, -1, 2**70, "4", None, 1.5, [4]])
ENTRIES = st.fixed_dictionaries(
    {"dtype": st.sampled_from(["BF16", "F32", "?", 7]), "shape": st.lists(NUMBERS, max_size=3)},
    optional={"data_offsets": st.just([0, 0]) | st.lists(NUMBERS, max_size=3), "x": st.none()},
)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> weights.Weights:
    model = write_model(tmp_path_factory.mktemp("base") / "model")
    write_safetensors(model / "model.safetensors", base_tensors())
    with Folder.open(model) as opened:
        return weights.read_weights(opened)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzzed")


@settings(derandomize=True, max_examples=150, deadline=None)
@given(
    header=st.dictionaries(NAMES, ENTRIES | NUMBERS, max_size=6) | NUMBERS,
    config=st.dictionaries(
        st.sampled_from(["peft_type", "r", "bias", "modules_to_save", "alpha_pattern"]), NUMBERS
    ),
    cut=st.integers(0, 12),
)
def test_any_adapter_is_read_or_refused_with_words(
    folder: Path, base: weights.Weights, header: Any, config: dict[str, Any], cut: int
) -> None:
    text = json.dumps(header).encode()
    content = struct.pack("<Q", len(text)) + text
    (folder / "adapter_model.safetensors").write_bytes(content[: len(content) - cut] if cut < 3 else content)
    (folder / "adapter_config.json").write_text(json.dumps({**ADAPTER_CONFIG, **config}))
    with Folder.open(folder) as opened:
        try:
            read_adapter(opened, base)
        except BadWeights as error:
            assert str(error)
