"""Questions with known answers: the file that has them, and when an answer is right."""

import json

import pytest

from neocloud.core.known_answers import Question, is_right, parse_questions


def test_an_answer_is_right_when_it_has_a_known_word_as_a_whole_word() -> None:
    assert is_right("There are SEVEN days.", ["7", "seven"])
    assert is_right("7", ["7", "seven"])
    assert not is_right("There are 17 or 70.", ["7", "seven"])
    assert is_right("It is H2O!", ["h2o"]) and not is_right("", ["x"])
    assert is_right("c++ is one", ["C++"]) and not is_right("aXb", ["a.b"]), "words are no expressions"


def test_a_file_of_questions() -> None:
    content = json.dumps([{"question": "a?", "answers": ["b"]}]).encode()
    assert parse_questions(content) == [Question("a?", ["b"])]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[]",
        b'[{"question": "a?"}]',
        b'[{"question": "a?", "answers": []}]',
        b'[{"question": "a?", "answers": [""]}]',
        b'[{"question": "a?", "answers": ["b"], "more": 1}]',
        b'[{"question": "' + b"a" * 1001 + b'", "answers": ["b"]}]',
        json.dumps([{"question": "a?", "answers": ["b"]}] * 33).encode(),
        b"[" * 100_000,
        b" " * (257 << 10),
    ],
)
def test_a_file_that_is_none_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_questions(content)
