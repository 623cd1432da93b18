"""One grammar for all commands: the same verbs, NAME as an argument, `--yes` and `--output` everywhere."""

from pathlib import Path
from typing import Any

import pytest

from neocloud.cli.commands.evaluate import compared
from neocloud.cli.commands.teardown import remaining_files
from neocloud.cli.evaluation import tasks
from neocloud.client.errors import ClientError
from tests.fast.cli.conftest import Neo
from tests.fast.cli.test_help import commands


def leaves() -> dict[tuple[str, ...], Any]:
    return {path: command for path, command in commands().items() if not hasattr(command, "commands")}


def verbs(*names: str) -> list[tuple[str, ...]]:
    return sorted(path for path in leaves() if path[-1] in names)


def without(wanted: set[str], *names: str) -> list[tuple[str, ...]]:
    """Return the commands whose last word is one of `names`, and that lack one of the options."""
    return [path for path in verbs(*names) if not wanted <= options(leaves()[path])]


def options(command: Any) -> set[str]:
    return {word for parameter in command.params for word in (*parameter.opts, *parameter.secondary_opts)}


def test_there_are_commands_to_look_at() -> None:
    assert len(verbs("get")) > 20 and len(verbs("delete")) > 20


def test_what_is_read_can_be_printed_for_programs() -> None:
    assert without({"--output", "-o"}, "list", "get") == []


def test_every_delete_takes_yes() -> None:
    assert without({"--yes", "-y"}, "delete") == []


def test_every_delete_of_what_may_run_can_be_forced() -> None:
    forced = {path for path in verbs("delete") if "--force" in options(leaves()[path])}
    run_nothing = {
        ("neo", "user", "delete"),
        ("neo", "fleet", "maintenance", "delete"),
        ("neo", "inference", "feedback", "delete"),
        ("neo", "tuning", "file", "delete"),
        ("neo", "vector-store", "delete"),
    }
    assert set(verbs("delete")) - forced == run_nothing


def test_every_create_takes_the_name_as_an_argument() -> None:
    parameters = {path: leaves()[path].params for path in verbs("create")}
    without_argument = [
        path
        for path, each in parameters.items()
        if not any(parameter.param_type_name == "argument" for parameter in each)
    ]
    assert without_argument == []
    with_option = [
        path
        for path, each in parameters.items()
        if any("--name" in parameter.opts and not getattr(parameter, "hidden", False) for parameter in each)
    ]
    assert with_option == [("neo", "user", "create")]


def test_nothing_is_called_show() -> None:
    """`show` is accepted for `get`; help teaches one word. Objects are listed as files are."""
    assert verbs("show", "describe", "ls") == [("neo", "ls"), ("neo", "storage", "ls")]


def test_other_words_for_a_verb_are_accepted(signed_in: Neo) -> None:
    listed, ls = (signed_in("config", word, "--help").out for word in ("list", "ls"))
    assert listed and ls.split("\n")[2:] == listed.split("\n")[2:]
    for words in (("deployment", "show"), ("model", "show"), ("tuning", "job", "show")):
        assert signed_in(*words, "--help").code == 0


def test_a_comparison_is_said_in_words() -> None:
    text = compared({"perplexity": -27.778819978671653, "speed": 4.2, "message_length": None})
    assert text == "Candidate against base: Perplexity rose by 27.8 %; Speed grew by 4.2 %."


def test_lm_eval_is_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clone, elsewhere = tmp_path / "clone", tmp_path / "elsewhere"
    program = clone / ".cache/clients/lm-eval/bin/lm-eval"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    monkeypatch.delenv(tasks.PROGRAM_VARIABLE, raising=False)
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr(tasks, "CLONE", clone)
    with pytest.raises(ClientError, match=r"Install `lm-eval\[api\]` with pip"):
        tasks.program()
    (clone / "scripts").mkdir(parents=True)
    (clone / "scripts" / "install-client").touch()
    with pytest.raises(ClientError, match="scripts/install-client lm-eval"):
        tasks.program()
    program.parent.mkdir(parents=True)
    program.touch()
    assert tasks.program() == str(program)


def test_destroy_lists_what_it_keeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / ".nebius").mkdir()
    key = tmp_path / ".nebius" / "neocloud.pem"
    key.touch()
    assert remaining_files(tmp_path) == [key]
