"""CKPT-01, CKPT-06: a checkpoint is whole or passed over; the newest few are kept, and older ones beside."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from checkpoint import CheckpointWriter, damage_in, newest_whole, write_checkpoint


def write(folder: Path, step: int) -> Path:
    files = {
        "weights.bin": lambda path: path.write_bytes(bytes([step]) * 5000),
        "optimizer.bin": lambda path: path.write_bytes(b"o" * 100),
    }
    return write_checkpoint(folder, step, {"position": step * 4}, files)


def test_the_newest_whole_checkpoint_is_found_with_its_state(tmp_path: Path) -> None:
    for step in (5, 10):
        write(tmp_path, step)
    found = newest_whole(tmp_path)
    assert found is not None
    assert (found.step, found.state, found.path.name) == (10, {"position": 40}, "checkpoint-000010")


def test_no_checkpoint_is_none(tmp_path: Path) -> None:
    assert newest_whole(tmp_path / "absent") is None


def truncate(path: Path) -> None:
    file = path / "weights.bin"
    file.write_bytes(file.read_bytes()[:1000])


def flip(path: Path) -> None:
    file = path / "weights.bin"
    file.write_bytes(b"x" + file.read_bytes()[1:])


DAMAGES = {
    "weights.bin has 1000 of 5000 bytes": truncate,
    "weights.bin does not match its checksum": flip,
    "optimizer.bin is missing": lambda path: (path / "optimizer.bin").unlink(),
    "manifest.json is missing": lambda path: (path / "manifest.json").unlink(),
    "manifest.json is damaged": lambda path: (path / "manifest.json").write_text('{"step": 1'),
}


@pytest.mark.parametrize("message", DAMAGES)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(
    tmp_path: Path, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, 5)
    DAMAGES[message](write(tmp_path, 10))
    found = newest_whole(tmp_path)
    assert found is not None and found.step == 5
    assert f"checkpoint-000010: {message}; skipped" in capsys.readouterr().err


def test_a_write_that_was_cut_off_is_not_taken_for_a_checkpoint(tmp_path: Path) -> None:
    write(tmp_path, 5)
    whole = write(tmp_path, 10)
    whole.rename(tmp_path / f".{whole.name}.partial")
    found = newest_whole(tmp_path)
    assert found is not None and found.step == 5


def test_a_damaged_checkpoint_is_replaced_by_a_new_one_of_the_same_step(tmp_path: Path) -> None:
    truncate(write(tmp_path, 5))
    assert damage_in(write(tmp_path, 5)) is None


def write_a(path: Path) -> None:
    path.write_bytes(b"a")


def copy_absent(path: Path) -> None:
    shutil.copy(path.with_name("absent"), path)


def test_the_background_writer_keeps_only_the_newest(tmp_path: Path) -> None:
    writer = CheckpointWriter(tmp_path, limit=2)
    for step in (1, 2, 3):
        writer.save(step, {}, {"a": write_a})
    writer.wait()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "checkpoint-000002",
        "checkpoint-000003",
    ]


def test_older_ones_at_multiples_of_so_many_steps_stay(tmp_path: Path) -> None:
    writer = CheckpointWriter(tmp_path, limit=2, every=20)
    for step in range(5, 55, 5):
        writer.save(step, {}, {"a": write_a})
    writer.wait()
    assert sorted(int(path.name[-6:]) for path in tmp_path.iterdir()) == [20, 40, 45, 50]


def test_a_failed_write_is_told_and_leaves_the_older_checkpoint(tmp_path: Path) -> None:
    writer = CheckpointWriter(tmp_path, limit=2)
    writer.save(1, {}, {"a": write_a})
    writer.save(2, {}, {"a": copy_absent})
    with pytest.raises(FileNotFoundError):
        writer.wait()
    found = newest_whole(tmp_path)
    assert found is not None and found.step == 1
