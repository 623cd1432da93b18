"""H7: what a training container leaves in its folder is read and written without following it anywhere."""

import json
import os
from pathlib import Path

import pytest

from neocloud.services.tuning import work_folder
from neocloud.services.tuning.work_folder import LOG_CHUNK_BYTES, BadResult, WorkFolder

SECRET = "of the host"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A file of the host that only root may read."""
    file = tmp_path / "shadow"
    file.write_text(json.dumps({"time": 1, "message": SECRET, "attempt": 1, "state": "stopped"}) + "\n")
    file.chmod(0o600)
    return file


@pytest.fixture
def folder(tmp_path: Path) -> WorkFolder:
    (tmp_path / "job" / "finetune").mkdir(parents=True)
    return WorkFolder(tmp_path / "job")


@pytest.mark.parametrize(
    "name", ["log.txt", "events.jsonl", "control.jsonl", "outcome.json", "job.json", "finetune/metrics.jsonl"]
)
@pytest.mark.parametrize("kind", ["link", "fifo", "folder"])
def test_what_is_no_plain_file_counts_as_missing(
    folder: WorkFolder, outside: Path, name: str, kind: str
) -> None:
    place = folder.path / name
    match kind:
        case "link":
            place.symlink_to(outside)
        case "fifo":
            os.mkfifo(place)
        case _:
            place.mkdir()
    assert folder.log_after(3, has_ended=True).text == "" and folder.log_after(0, has_ended=False).text == ""
    assert folder.log_tail(10).text == "" and folder.events() == [] and folder.metrics == []
    assert folder.outcome(1) is None and folder.settings() == {} and not folder.has_file(name)


def test_no_part_of_a_log_is_larger_than_its_limit(folder: WorkFolder) -> None:
    log = folder.path / "log.txt"
    log.write_bytes(b"\xff" * (2 * LOG_CHUNK_BYTES) + b"\nend\n")
    sizes, offset = list[int](), 0
    while not (part := folder.log_after(offset, has_ended=False)).is_end:
        sizes.append(part.next_offset - offset)
        offset = part.next_offset
    assert sizes == [LOG_CHUNK_BYTES] * 2 and part.text == "\nend\n"
    log.write_bytes(b"\n")
    os.truncate(log, 1 << 40)  # a hole that takes no room
    assert len(folder.log_tail(10).text) <= LOG_CHUNK_BYTES
    assert folder.log_after(5, has_ended=True).next_offset == 5 + LOG_CHUNK_BYTES


def test_a_folder_that_became_a_link_shows_nothing(folder: WorkFolder, tmp_path: Path, outside: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "metrics.jsonl").write_text(
        '{"time": 1, "step": 1, "total_steps": 2, "train_loss": 1}\n'
    )
    (tmp_path / "elsewhere" / "checkpoint-000010").mkdir()
    (folder.path / "finetune").rmdir()
    (folder.path / "finetune").symlink_to(tmp_path / "elsewhere")
    assert folder.metrics == [] and folder.checkpoints() == [] and not folder.has_begun_training


@pytest.mark.parametrize(
    "changes",
    [
        {"step": 2**31},
        {"step": -1},
        {"total_steps": 10**400},
        {"tokens": 2**62},
        {"tokens": -1},
        {"time": 10**12},
    ],
    ids=str,
)
def test_numbers_that_no_status_can_hold_are_left_out(folder: WorkFolder, changes: dict[str, int]) -> None:
    row = {"time": 1.0, "step": 1, "total_steps": 2, "train_loss": 1.5, "tokens": 100}
    lines = [json.dumps(each) + "\n" for each in (row, {**row, **changes})]
    (folder.path / "finetune" / "metrics.jsonl").write_text("".join(lines))
    assert [each.step for each in folder.metrics] == [1]


def test_a_checkpoint_beyond_any_step_is_left_out(folder: WorkFolder) -> None:
    for name in ("checkpoint-000010", "checkpoint-999999999999"):
        (folder.path / "finetune" / name).mkdir()
    assert len(folder.checkpoints()) == 1


def test_an_event_is_not_appended_to_another_file(folder: WorkFolder, outside: Path) -> None:
    before = outside.read_text()
    (folder.path / "control.jsonl").symlink_to(outside)
    folder.add_event(1.0, "Attempt 2 continues.")
    assert outside.read_text() == before
    (folder.path / "control.jsonl").unlink()
    folder.add_event(1.0, "Attempt 2 continues.")
    assert [event.message for event in folder.events()] == ["Attempt 2 continues."]


def test_settings_are_written_through_no_link(folder: WorkFolder, outside: Path) -> None:
    before = outside.read_text()
    for name in (".job.json.partial", "job.json", "outcome.json"):
        (folder.path / name).symlink_to(outside)
    folder.write_settings({"attempt": 2})
    assert outside.read_text() == before and folder.settings() == {"attempt": 2}


def test_data_is_a_copy_and_laid_through_no_link(folder: WorkFolder, outside: Path, tmp_path: Path) -> None:
    source, before = tmp_path / "file-1", outside.read_text()
    source.write_text('{"messages": []}\n')
    for name in (".training_file.jsonl.partial", "training_file.jsonl"):
        (folder.path / name).symlink_to(outside)
    folder.stage(source, "training_file.jsonl")
    laid = folder.path / "training_file.jsonl"
    assert not laid.is_symlink() and laid.read_text() == source.read_text() and outside.read_text() == before
    laid.write_text("changed by the container")
    assert source.read_text() == '{"messages": []}\n'
    laid.unlink()
    os.mkfifo(laid)
    with pytest.raises(OSError):
        folder.measure("training_file.jsonl")


@pytest.mark.parametrize("name", ["metrics.csv", "report.json"])
def test_no_link_is_kept_as_a_result_file(folder: WorkFolder, outside: Path, name: str) -> None:
    (folder.path / name).symlink_to(outside)
    with pytest.raises(BadResult, match=name), folder.result_file(name):
        pass
    (folder.path / name).unlink()
    (folder.path / name).write_text("own")
    with folder.result_file(name) as path:
        (folder.path / name).unlink()
        (folder.path / name).symlink_to(outside)
        assert path.read_text() == "own"


def test_result_files_are_bounded(folder: WorkFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder.path / "metrics.csv").write_text("12345")
    monkeypatch.setattr(work_folder, "MAX_RESULT_BYTES", 4)
    with pytest.raises(BadResult, match="larger than 4 bytes"), folder.result_file("metrics.csv"):
        pass


@pytest.mark.parametrize("place", ["result", "result/tokenizer.json", "result/inner/file"])
@pytest.mark.parametrize("kind", ["link", "fifo"])
def test_no_model_is_made_of_anything_but_files(
    folder: WorkFolder, outside: Path, tmp_path: Path, place: str, kind: str
) -> None:
    (folder.path / place).parent.mkdir(parents=True, exist_ok=True)
    if kind == "link":
        (folder.path / place).symlink_to(outside.parent if place == "result" else outside)
    else:
        os.mkfifo(folder.path / place)
    target = tmp_path / "models" / "project-e00one" / "ftjob-e00one"
    with pytest.raises(BadResult, match="cannot be copied"):
        folder.copy_result(target)
    assert not list(target.parent.iterdir())


def test_a_plain_result_becomes_a_model_of_its_own(folder: WorkFolder, tmp_path: Path) -> None:
    (folder.path / "result" / "inner").mkdir(parents=True)
    (folder.path / "result" / "inner" / "file").write_text("weights")
    target = tmp_path / "models" / "project-e00one" / "ftjob-e00one"
    folder.copy_result(target)
    folder.copy_result(target)
    (folder.path / "result" / "inner" / "file").write_text("changed by the container")
    assert (target / "inner" / "file").read_text() == "weights"


def test_lines_that_no_recipe_writes_are_left_out(folder: WorkFolder) -> None:
    good = {"time": 5, "step": 1, "total_steps": 2, "train_loss": 1.5, "tokens": 7}
    bad = [
        *(b"[" * 100_000, b"null", b"5", b"\xff", b"{}", b'{"time": NaN, "message": "x"}'),
        *(b'{"time": 1e300, "message": "x"}', b'{"time": "now"}', b'{"time": true, "step": "x"}'),
        *(
            json.dumps({**good, **change}).encode()
            for change in ({"step": -1}, {"step": 2**40}, {"tokens": "x"})
        ),
        json.dumps({**good, "train_loss": [1]}).encode(),
    ]
    for name in ("finetune/metrics.jsonl", "events.jsonl", "outcome.json"):
        (folder.path / name).write_bytes(b"\n".join([*bad, json.dumps(good).encode()]) + b"\n")
    assert [each.row for each in folder.metrics] == [good] and folder.outcome(1) is None
    assert all(0 <= event.time <= work_folder.LATEST_SECONDS for event in folder.events())
    (folder.path / "finetune" / "checkpoint-1x").mkdir()
    (folder.path / "finetune" / "checkpoint-000001").mkdir()
    os.utime(folder.path / "finetune" / "checkpoint-000001", (0, 1e11))
    assert [(each.step, each.time) for each in folder.checkpoints()] == [(1, work_folder.LATEST_SECONDS)]
    (folder.path / "outcome.json").write_text(
        '{"attempt": 1, "state": "succeeded", "trained_tokens": "many"}'
    )
    assert folder.outcome(1) is None
