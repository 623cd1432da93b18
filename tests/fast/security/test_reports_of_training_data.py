"""Reports on training data: names in them may be of any length, the words about them may not."""

import json
from pathlib import Path
from typing import Any

import pytest

from neocloud.core import training_data
from neocloud.core.reconcile.reconciler import Failed
from neocloud.core.training_data import CheckFailed, DataReport, check_training_data


async def checked(path: Path, row: dict[str, Any]) -> DataReport:
    path.write_text(json.dumps(row) + "\n")
    with path.open("rb") as file:
        return await check_training_data(file)


async def test_a_name_of_any_length_makes_no_long_report(tmp_path: Path) -> None:
    found = await checked(tmp_path / "one.jsonl", {"k" * 3_000_000: "x", "z": "y"})
    assert found.errors
    assert len(found.reason) < 2_000


def test_what_failed_is_told_in_a_few_words_whatever_the_tenant_named_it() -> None:
    assert len(str(Failed("Reason", "x" * 3_000_000))) < 5_000
    assert str(Failed("Reason", "short")) == "short"


async def test_many_columns_make_no_long_report(tmp_path: Path) -> None:
    row = {"prompt": "a", "completion": "b", **{f"q{n}" * 50: "v" for n in range(3_000)}}
    try:
        found = await checked(tmp_path / "many.jsonl", row)
    except CheckFailed as error:
        pytest.fail(f"the report was not read: {error}")
    assert sum(map(len, found.notes)) < 3_000


async def test_a_check_ends_by_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that uses no processor time is never ended by its limit of that. No Python starts in 10 ms."""
    monkeypatch.setattr(training_data, "MOST_SECONDS", 0.01)
    with pytest.raises(CheckFailed, match="did not end within"):
        await checked(tmp_path / "one.jsonl", {"prompt": "a", "completion": "b"})
