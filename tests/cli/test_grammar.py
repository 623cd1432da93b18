"""One grammar for all commands: the same verbs, NAME as an argument, `--yes` and `--output` everywhere."""

from pathlib import Path
from typing import Any

import pytest

from neocloud.cli.commands.evaluate import compared
from neocloud.cli.commands.teardown import remaining_files
from neocloud.cli.evaluation import tasks
from neocloud.client.errors import ClientError
from tests.cli.conftest import Neo
from tests.cli.test_help import COMMANDS

LEAVES = {path: command for path, command in COMMANDS.items() if not hasattr(command, "commands")}


def verbs(*names: str) -> list[tuple[str, ...]]:
    return sorted(path for path in LEAVES if path[-1] in names)


def options(command: Any) -> set[str]:
    return {word for parameter in command.params for word in (*parameter.opts, *parameter.secondary_opts)}


def test_there_are_commands_to_look_at() -> None:
    assert len(verbs("get")) > 20 and len(verbs("delete")) > 20


@pytest.mark.parametrize("path", verbs("list", "get"), ids=" ".join)
def test_what_is_read_can_be_printed_for_programs(path: tuple[str, ...]) -> None:
    assert {"--output", "-o"} <= options(LEAVES[path])


@pytest.mark.parametrize("path", verbs("delete"), ids=" ".join)
def test_every_delete_takes_yes(path: tuple[str, ...]) -> None:
    assert {"--yes", "-y"} <= options(LEAVES[path])


def test_every_delete_of_what_may_run_can_be_forced() -> None:
    forced = {path for path in verbs("delete") if "--force" in options(LEAVES[path])}
    run_nothing = {("neo", "user", "delete"), ("neo", "fleet", "maintenance", "delete")}
    assert set(verbs("delete")) - forced == run_nothing


@pytest.mark.parametrize("path", verbs("create"), ids=" ".join)
def test_every_create_takes_the_name_as_an_argument(path: tuple[str, ...]) -> None:
    arguments = [parameter for parameter in LEAVES[path].params if parameter.param_type_name == "argument"]
    assert arguments, "the name is an argument"
    visible = [parameter for parameter in LEAVES[path].params if "--name" in parameter.opts]
    assert all(getattr(parameter, "hidden", False) for parameter in visible) or path == (
        "neo",
        "user",
        "create",
    )


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
