"""FT-08, FT-10, CKPT-06: fine-tuning that is stopped, killed or damaged ends as if it was not."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import safetensors.torch
import torch

import dataset_tokenize
import finetune
from lora_model import load_base, with_adapter
from precision import precision
from recipe_errors import EXIT_STOPPED, RecipeError
from tests.fast.recipes.conftest import ALONE, CHATS, RECIPES, write_chats

STEPS = 30
GLOBAL_BATCH = 2
SETTINGS = [
    *("--set", f"max_steps={STEPS}", "--set", "save_steps=5", "--set", "logging_steps=1"),
    *("--set", "learning_rate=0.01", "--set", "lora_r=4", "--set", "lora_dropout=0.1"),
    *("--set", 'modules_to_save=["lm_head"]'),
]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


@pytest.fixture(scope="module")
def data(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    chats = write_chats(tmp_path_factory.mktemp("data") / "chats.jsonl")
    assert dataset_tokenize.main([str(chats), "--model", str(tiny_model), "--context", "128", *ALONE]) == 0
    return chats.with_suffix(".arrow")


@pytest.fixture(scope="module")
def flags(tiny_model: Path, data: Path) -> list[str]:
    return ["--model", str(tiny_model), "--data", str(data), *SETTINGS]


def run(flags: list[str], output: Path, *more: str, batch: int = GLOBAL_BATCH) -> int:
    size = ["--set", f"per_device_train_batch_size={batch}"]
    return finetune.main([*flags, *size, "--output-dir", str(output), *more])


@pytest.fixture(scope="module")
def undisturbed(flags: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("undisturbed")
    assert run(flags, output) == 0
    return output


def weights(output: Path) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(output / "adapter" / "adapter_model.safetensors")


def summary(output: Path) -> dict:
    return json.loads((output / "adapter" / "training_summary.json").read_text("utf-8"))


def assert_same(output: Path, other: Path, tolerance: float = 0.0) -> None:
    first, second = weights(output), weights(other)
    assert first.keys() == second.keys() and first
    for name in first:
        torch.testing.assert_close(first[name], second[name], atol=tolerance, rtol=tolerance)
    assert summary(output)["step"] == summary(other)["step"] == STEPS


def start(command: list[str], flags: list[str], output: Path, batch: int) -> subprocess.Popen[str]:
    size = ["--set", f"per_device_train_batch_size={batch}", "--output-dir", str(output)]
    return subprocess.Popen(
        [*command, str(RECIPES / "finetune.py"), *flags, *size],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def until_step(process: subprocess.Popen[str], step: int) -> None:
    """Read the log up to the progress line of a step."""
    log = []
    for line in process.stderr or ():
        log.append(line)
        if line.startswith(f"step {step}/"):
            return
    pytest.fail("ended before step " + str(step) + ":\n" + "".join(log))


@pytest.fixture
def killed_at_the_end() -> Iterator[list[subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        process.kill()
        process.wait()
        if process.stderr:
            process.stderr.close()


def test_the_adapter_loads_and_answers_differently_from_the_base(undisturbed: Path, tiny_model: Path) -> None:
    ids = torch.arange(3, 20).unsqueeze(0)
    base = load_base(str(tiny_model)).eval()
    with torch.inference_mode():
        before = base(input_ids=ids).logits
        after = with_adapter(base, undisturbed / "adapter").eval()(input_ids=ids).logits
    assert not torch.allclose(before, after, atol=0.1)
    assert (undisturbed / "adapter" / "tokenizer.json").is_file()
    found = summary(undisturbed)
    assert found["step"] == STEPS and found["loss"] < 4 and found["checkpoints"] == 6


def test_only_the_newest_checkpoints_are_kept(undisturbed: Path) -> None:
    names = sorted(path.name for path in undisturbed.iterdir())
    assert names == ["adapter", "checkpoint-000025", "checkpoint-000030", "metrics.jsonl"]


def test_two_processes_stopped_by_sigterm_and_resumed_learn_what_one_learns(
    flags: list[str],
    tmp_path: Path,
    undisturbed_without_dropout: Path,
    killed_at_the_end: list[subprocess.Popen[str]],
) -> None:
    flags = [*flags, "--set", "lora_dropout=0.0"]
    output = tmp_path / "two"
    first = start(TORCHRUN, flags, output, batch=GLOBAL_BATCH // 2)
    killed_at_the_end.append(first)
    until_step(first, 1)  # torchrun takes the time of some steps to hand the signal on
    first.send_signal(signal.SIGTERM)
    assert first.stderr is not None
    assert "run the same command again to continue" in first.stderr.read()
    assert first.wait() != 0 and not (output / "adapter").exists()
    stopped = max(output.glob("checkpoint-*"))  # the one of step 5 may lie there, too
    assert 1 <= int(stopped.name.removeprefix("checkpoint-")) < STEPS
    second = start(TORCHRUN, flags, output, batch=GLOBAL_BATCH // 2)
    killed_at_the_end.append(second)
    assert second.stderr is not None
    log = second.stderr.read()
    assert second.wait() == 0, log
    assert f"resuming from {stopped}" in log
    assert_same(output, undisturbed_without_dropout, tolerance=2e-3)


@pytest.fixture(scope="module")
def undisturbed_without_dropout(flags: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("no_dropout")
    assert run([*flags, "--set", "lora_dropout=0.0"], output) == 0
    return output


def test_killed_without_warning_it_ends_with_the_very_same_weights(
    flags: list[str],
    tmp_path: Path,
    undisturbed: Path,
    killed_at_the_end: list[subprocess.Popen[str]],
) -> None:
    process = start([sys.executable], flags, tmp_path, batch=GLOBAL_BATCH)
    killed_at_the_end.append(process)
    until_step(process, 12)
    process.kill()
    process.wait()
    assert run(flags, tmp_path) == 0
    assert 0 < summary(tmp_path)["resumed_from"] < STEPS
    assert_same(tmp_path, undisturbed, tolerance=1e-5)


def test_a_process_told_to_stop_exits_with_the_documented_code(
    flags: list[str], tmp_path: Path, killed_at_the_end: list[subprocess.Popen[str]]
) -> None:
    endless = [*flags, "--set", "max_steps=100000"]
    process = start([sys.executable], endless, tmp_path, batch=GLOBAL_BATCH)
    killed_at_the_end.append(process)
    until_step(process, 2)
    process.send_signal(signal.SIGTERM)
    assert process.stderr is not None
    assert "stopped at step" in process.stderr.read()
    assert process.wait() == EXIT_STOPPED


def test_a_truncated_checkpoint_is_passed_over_and_the_result_is_the_same(
    flags: list[str], tmp_path: Path, undisturbed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "run"
    shutil.copytree(undisturbed, output)
    shutil.rmtree(output / "adapter")
    damaged = output / "checkpoint-000030" / "optimizer.pt"
    damaged.write_bytes(damaged.read_bytes()[:100])
    assert run(flags, output) == 0
    log = capsys.readouterr().err
    assert "; skipped" in log and "checkpoint-000025 at step 25 of 30" in log
    assert_same(output, undisturbed)


def test_a_full_disk_is_told_and_the_run_goes_on_once_there_is_room(
    flags: list[str], tmp_path: Path, undisturbed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "run"
    shutil.copytree(undisturbed / "checkpoint-000025", output / "checkpoint-000025")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        assert run(flags, output) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "cannot be written" in capsys.readouterr().err
    assert sorted(path.name for path in output.iterdir()) == ["checkpoint-000025", "metrics.jsonl"]
    assert run(flags, output) == 0
    assert_same(output, undisturbed)


def test_in_mixed_precision_the_learnt_weights_stay_in_32_bits(flags: list[str], tmp_path: Path) -> None:
    more = ["--set", "mixed_precision=bf16", "--set", "max_steps=3"]
    assert run([*flags, *more], tmp_path) == 0
    assert {tensor.dtype for tensor in weights(tmp_path).values()} == {torch.float32}
    assert 0 < summary(tmp_path)["loss"] < 10


def test_one_row_is_enough_to_train_on(tiny_model: Path, tmp_path: Path) -> None:
    chats = write_chats(tmp_path / "one.jsonl", CHATS[:1])
    assert dataset_tokenize.main([str(chats), "--model", str(tiny_model), "--pack", *ALONE]) == 0
    places = ["--model", str(tiny_model), "--data", str(chats.with_suffix(".arrow"))]
    assert finetune.main([*places, "--output-dir", str(tmp_path), "--set", "num_train_epochs=3"]) == 0
    assert summary(tmp_path)["step"] == 3


def test_a_finished_run_started_again_only_writes_the_adapter(
    flags: list[str], tmp_path: Path, undisturbed: Path
) -> None:
    output = tmp_path / "run"
    shutil.copytree(undisturbed, output)
    shutil.rmtree(output / "adapter")
    assert run(flags, output) == 0
    assert summary(output)["resumed_from"] == STEPS
    assert_same(output, undisturbed)


def test_accumulating_small_batches_learns_what_a_large_batch_learns(
    flags: list[str], tmp_path: Path, undisturbed_without_dropout: Path
) -> None:
    more = ["--set", "lora_dropout=0.0", "--set", "gradient_accumulation_steps=2"]
    assert run(flags, tmp_path, *more, batch=1) == 0
    assert_same(tmp_path, undisturbed_without_dropout, tolerance=2e-3)


def test_checkpoints_of_another_run_are_refused(
    flags: list[str], undisturbed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(flags, undisturbed, "--set", "lora_r=8") == 1
    assert "lora_r was 4, is now 8" in capsys.readouterr().err


def test_data_of_another_tokenizer_is_refused(
    flags: list[str], data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    opened = finetune.TokenizedData.open(data)
    opened.facts["vocab_size"] = 100_000
    monkeypatch.setattr(finetune.TokenizedData, "open", lambda path: opened)
    assert run(flags, tmp_path) == 1
    assert "run dataset_tokenize.py with this model" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("load_in_4bit=true", "load_in_4bit needs a GPU"),
        ("mixed_precision=fp16", "fp16 needs a GPU"),
        ('target_modules=["nonsense"]', "target_modules"),
    ],
)
def test_what_this_machine_or_model_cannot_do_is_told(
    flags: list[str], tmp_path: Path, setting: str, message: str,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert run(flags, tmp_path, "--set", setting) == 1
    assert message in capsys.readouterr().err


def test_fp16_is_refused_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert precision("no") is None and precision("bf16") == torch.bfloat16
    with pytest.raises(RecipeError):
        precision("fp16")


def test_a_model_that_is_nowhere_is_told(
    flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    assert run([*flags, "--model", str(empty)], tmp_path / "run") == 1
    assert "cannot load a model" in capsys.readouterr().err


def test_explain_config_prints_the_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert finetune.main(["--explain-config"]) == 0
    assert "| `lora_r` | `16` |" in capsys.readouterr().out
