"""Personal data in texts: what is found, what is not, and that a hostile text takes linear time."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

import dataset_convert
from personal_data import PersonalData, kinds_in, masked
from tests.fast.recipes.data_reader import Reader

FOUND = [
    ("email", "write to ana.perez+bank@mail.bank.example, please"),
    ("email", "ölçer@münchen.example"),
    ("card", "my card is 4111 1111 1111 1111."),
    ("card", "5500-0000-0000-0004"),
    ("card", "378282246310005"),
    ("iban", "to DE89 3704 0044 0532 0130 00 today"),
    ("iban", "gb82west12345698765432"),
    ("iban", "NO93 8601 1117 947 thanks"),
    ("phone", "+49 30 1234567"),
    ("phone", "+1 (415) 555-2671"),
    ("phone", "(555) 234-5678"),
    ("phone", "030/1234567"),
]
NOT_FOUND = [
    "4111 1111 1111 1112",
    "order 1234567890123456",
    "DE88370400440532013000",
    "on 2026-11-29 from 09:00-17:00",
    "2 000 000 000 000 000 units",
    "ISBN 978-3-16-148410-0",
    "version 1.2.3.4",
    "x@y, @home, a @ b",
    "Call us 24/7: the rate is 3.1415926535",
]


@pytest.mark.parametrize(("kind", "text"), FOUND)
def test_each_kind_is_found_once_and_masked(kind: str, text: str) -> None:
    assert list(kinds_in(text)) == [kind]
    assert list(kinds_in(masked(text))) == [] and masked(text) != text


@pytest.mark.parametrize("text", NOT_FOUND)
def test_other_numbers_are_left_alone(text: str) -> None:
    assert list(kinds_in(text)) == [] and masked(text) == text


@pytest.mark.parametrize(
    "part",
    [
        "a@",
        "4111 1111 1111 1111 ",
        "DE89 3704 0044 0532 0130 00 ",
        "+1",
        "1 ",
        "DE89",
        "a.b-",
        "a" * 90 + "@",
    ],
)
def test_a_hostile_text_takes_linear_time(part: str) -> None:
    def seconds(length: int) -> float:
        text = part * (length // len(part))
        started = time.process_time()
        masked(text)
        return time.process_time() - started

    assert seconds(400_000) < 0.02 + 8 * 2 * seconds(50_000)


def test_counts_name_the_first_conversations_and_no_value() -> None:
    found = PersonalData()
    for number in range(1, 9):
        found.add(["card 4111 1111 1111 1111", "and 4111111111111111"], f"line {number}")
    [line] = found.lines()
    assert line == (
        "personal data: 16 card numbers in 8 conversations, first: line 1, line 2, line 3, line 4, line 5"
    )


def test_a_conversion_reports_personal_data_and_refuses_it_when_asked(tmp_path: Path, reader: Reader) -> None:
    path = tmp_path / "a.csv"
    path.write_text("prompt,completion\nHi,Hello\nI am ana@bank.example,Welcome\n")
    assert reader.learnt(path)
    assert "personal data: 1 e-mail address in 1 conversation, first: line 3" in reader.said()
    refusal = reader.refusal(path, "--refuse-personal-data")
    assert "holds personal data: 1 e-mail address" in refusal and "ana@" not in refusal


def test_a_check_reports_personal_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"prompt": "Pay to DE89370400440532013000", "completion": "Done"}))
    assert dataset_convert.main([str(path), "--check"]) == 0
    [note] = [text for text in json.loads(capsys.readouterr().out)["notes"] if "personal data" in text]
    assert note == "personal data: 1 IBAN in 1 conversation, first: line 1"
