"""Interpretation of an engine's end: the line that says why, whether it was memory, and the pause."""

from neocloud.services.inference.reconcile.replicas import explain, pause

_STAMP = "(EngineCore pid=21) ERROR 11-22 00:30:09 [core.py:1512] "


def test_the_last_error_of_the_log_is_the_reason() -> None:
    log = f"INFO starting\n{_STAMP}Traceback (most recent call last):\n{_STAMP}ValueError: no parser: nope\n"
    ending = explain("engine ended with code 1", log)
    assert ending.text == "the model server ended (exit code 1): ValueError: no parser: nope"
    assert not ending.is_memory


def test_memory_is_told_by_its_own_line_whatever_came_after() -> None:
    log = (
        f"{_STAMP}ValueError: No available memory for the cache blocks. Try increasing it.\n"
        "RuntimeError: Engine core initialization failed. See root cause above.\n"
    )
    ending = explain("engine ended with code 1", log)
    assert ending.is_memory and "No available memory" in ending.text


def test_an_engine_that_died_without_a_word_was_probably_killed() -> None:
    assert "takes more memory than its limit" in explain("engine ended with code 137", "").text
    assert "ended with code 3" in explain("engine ended with code 3", "").text


def test_the_text_says_the_exit_code_or_the_signal() -> None:
    for message, how in (
        ("server ended with code 139", " (signal 11)"),
        ("job 7 ended FAILED, exit code 3", " (exit code 3)"),
        ("job 7 ended CANCELLED, exit code 0", ""),
        ("server ended with code 255", " (exit code 255)"),
        ("it is gone", ""),
    ):
        assert explain(message, "ready\n").text == f"the model server ended{how}: ready"


def test_pauses_double_up_to_five_minutes_and_start_with_none() -> None:
    seconds = [pause(failures).total_seconds() for failures in (0, 1, 2, 3, 7, 50)]
    assert seconds == [0, 5, 10, 20, 300, 300]
