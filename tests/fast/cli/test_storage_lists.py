"""Writers of a bucket choose its keys: none adds a row to a list, on a terminal or in a pipe."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fast.cli.conftest import Ran
from tests.fast.cli.screen import on_screen
from tests.fast.cli.test_storage import bucket, put, served, storage  # noqa: F401
from tests.fast.object_gateway.s3.served import Served

FORGED = "y                 2026-11-28 16:00:00           5"
KEYS = [f"t/x\n{FORGED}", "t/\x1b[2Kgone", "t/line\u2028end", "t/" + "long-" * 60, "t/\u202etxt.exe"]


@pytest.mark.parametrize("arguments", [("ls", "-r"), ("rm", "-r", "--dry-run"), ("cp", "-r", "--dry-run")])
def test_a_key_adds_no_row(
    arguments: tuple[str, ...],
    served: Served,  # noqa: F811
    bucket: str,  # noqa: F811
    storage: Callable[..., Ran],  # noqa: F811
    tmp_path: Path,
) -> None:
    put(served, bucket, *KEYS)
    verb, *options = arguments
    target = [tmp_path] if verb == "cp" else []
    words = (verb, f"s3://{bucket}/t/", *target, *options)
    piped = storage(*words).out
    assert not [line for line in piped.splitlines() if line.startswith(("y ", "end", "gone"))]
    assert not {"\x1b", "\u2028", "\u202e"} & set(piped) and "x\\ny" in piped
    shown = on_screen(80, lambda: storage(*words))
    assert not [line for line in shown.splitlines() if line.startswith(("y ", "end", "gone"))]


def test_the_keys_themselves_are_in_json(
    served: Served,  # noqa: F811
    bucket: str,  # noqa: F811
    storage: Callable[..., Ran],  # noqa: F811
) -> None:
    put(served, bucket, *KEYS)
    items = json.loads(storage("ls", "-r", f"s3://{bucket}", "-o", "json").out)
    assert sorted(item["key"] for item in items) == sorted(KEYS)


@pytest.mark.parametrize("width", [60, 80, 200])
def test_every_key_and_size_is_whole(
    width: int,
    served: Served,  # noqa: F811
    bucket: str,  # noqa: F811
    storage: Callable[..., Ran],  # noqa: F811
) -> None:
    put(served, bucket, "a/" + "part-" * 30, "b", body=b"x" * 12_345)
    shown = on_screen(width, lambda: storage("ls", "-r", f"s3://{bucket}"))
    assert shown.count("12,345") == 2
    keys = re.sub(r"\d{4}-\d\d-\d\d +\d\d:\d\d:\d\d|12,345", "", shown)
    assert "".join(keys.split()).count("part-") == 30


def test_a_missing_file_is_wrong_usage_and_a_missing_bucket_names_undelete(
    storage: Callable[..., Ran],  # noqa: F811
    tmp_path: Path,
) -> None:
    """FI-35 and FI-36: as for other commands, 2; and errors begin with neo: everywhere."""
    ran = storage("cp", tmp_path / "missing", "s3://nowhere/x")
    assert ran.code == 2 and ran.err.startswith("neo: ") and "No such file" in ran.err
    (tmp_path / "there").write_text("x")
    ran = storage("cp", tmp_path / "there", "s3://no-such-bucket-here/x")
    assert ran.code == 3 and "neo storage bucket undelete NAME" in ran.err and "Error:" not in ran.err
