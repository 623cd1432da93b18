"""The spool keeps what was written whole, whatever ended the process, and stays below its bound."""

import json
import os
from pathlib import Path

import pytest

from neocloud.fleet.agent.spool import ACKNOWLEDGED, LEAST_BYTES, RECORDS, Spool, SpoolError


def numbers(spool: Spool) -> list[int]:
    return [each["n"] for each in spool.records()]


def test_records_are_numbered_and_there_after_a_restart(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool")
    assert spool.append("changes", {"a": 1}) and spool.append("heartbeat", {})
    spool.close()
    again = Spool(tmp_path / "spool")
    assert [(each["n"], each["kind"]) for each in again.records()] == [(1, "changes"), (2, "heartbeat")]
    assert again.append("changes", {}) and numbers(again) == [1, 2, 3]
    again.close()


@pytest.mark.parametrize("rest", [b'{"n": 3, "ki', b"\x00" * 5000, b"x" * 9000])
def test_what_is_left_of_an_unfinished_line_is_removed(tmp_path: Path, rest: bytes) -> None:
    spool = Spool(tmp_path)
    spool.append("changes", {})
    spool.close()
    with (tmp_path / RECORDS).open("ab") as file:
        file.write(rest)
    again = Spool(tmp_path)
    assert numbers(again) == [1] and (tmp_path / RECORDS).read_bytes().endswith(b"}\n")
    again.append("changes", {})
    assert numbers(again) == [1, 2]
    again.close()


def test_a_full_spool_says_so_once_and_takes_more_after_the_acknowledgement(tmp_path: Path) -> None:
    spool = Spool(tmp_path, LEAST_BYTES)
    while spool.append("changes", {"text": "x" * 1000}):
        pass
    assert not spool.append("changes", {"text": "x" * 1000})
    records = list(spool.records())
    assert [each["kind"] for each in records].count("full") == 1 and records[-1]["kind"] == "full"
    assert (tmp_path / RECORDS).stat().st_size <= LEAST_BYTES
    (tmp_path / ACKNOWLEDGED).write_text(str(spool.last - 2))
    assert spool.has_acknowledged() and spool.drop_acknowledged() == spool.last - 2
    assert numbers(spool) == [spool.last - 1, spool.last]
    assert spool.append("changes", {"text": "x" * 1000}) and not spool.has_acknowledged()
    spool.close()
    again = Spool(tmp_path, LEAST_BYTES)
    assert len(numbers(again)) == 3, "the last record is in the new file"
    again.close()


@pytest.mark.parametrize("text", ["", "many", "-5", "9" * 40, "1e3"])
def test_an_acknowledgement_that_is_no_number_drops_nothing_it_should_not(tmp_path: Path, text: str) -> None:
    spool = Spool(tmp_path)
    spool.append("changes", {})
    (tmp_path / ACKNOWLEDGED).write_text(text)
    spool.drop_acknowledged()
    spool.append("changes", {})
    assert numbers(spool) == ([2] if text.startswith("9") else [1, 2])
    spool.close()


def test_one_agent_to_a_folder(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    with pytest.raises(SpoolError, match="Another agent writes to"):
        Spool(tmp_path)
    spool.close()
    Spool(tmp_path).close()


def test_links_and_pipes_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("precious")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / RECORDS).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic link"):
        Spool(tmp_path / "a")
    assert (tmp_path / "elsewhere").read_text() == "precious"
    (tmp_path / "b").mkdir()
    os.mkfifo(tmp_path / "b" / RECORDS)
    with pytest.raises(SpoolError, match="is not a file"):
        Spool(tmp_path / "b")


def test_the_files_are_private(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool")
    assert (tmp_path / "spool").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "spool" / RECORDS).stat().st_mode & 0o777 == 0o600
    spool.close()


def test_a_disk_without_room_leaves_no_half_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = Spool(tmp_path)
    spool.append("changes", {})

    def no_room(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fdatasync", no_room)
    with pytest.raises(OSError, match="No space left"):
        spool.append("changes", {"text": "x"})
    monkeypatch.undo()
    assert spool.append("changes", {}) and numbers(spool) == [1, 2]
    assert all(json.loads(line) for line in (tmp_path / RECORDS).read_bytes().splitlines())
    spool.close()
