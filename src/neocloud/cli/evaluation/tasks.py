"""Run tasks of lm-eval (EleutherAI's evaluation harness) against two served models.

The harness is a separately installed program. It receives the address and, through its environment, a key.
Tasks and their data are local.
"""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import neocloud
from neocloud.cli.evaluation.client import Model
from neocloud.cli.output import Format, JsonObject, show, table
from neocloud.cli.progress import stage
from neocloud.client.errors import ClientError
from neocloud.client.gateway import KEY_VARIABLE

PROGRAM_VARIABLE = "NEOCLOUD_LM_EVAL"
_INSTALLED = Path(".cache/clients/lm-eval/bin/lm-eval")
CLONE = Path(neocloud.__file__).parents[2]
"""Where the source is, unless the package was installed by itself."""
_OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
_LAST_LINES = 15
_AT_A_TIME = 8


@dataclass(frozen=True)
class Tasks:
    """The tasks to run. Their files are in `folder`, and paths in them are relative to it."""

    names: str
    folder: Path | None = None
    tokenizer: str = ""
    """Folder or hub id. With one, prompts go to /completions and may be judged by likelihood; without one
    they go to /chat/completions, and only what is generated can be judged."""
    limit: int = 0


Results = dict[str, dict[str, float]]
"""Scores by task and metric."""


def run_tasks(base: Model, candidate: Model, tasks: Tasks) -> JsonObject:
    """Run them on both and return the report."""
    results: list[Results] = []
    directions: dict[str, str] = {}
    for model in (base, candidate):
        with stage(f"Run {tasks.names} on {model.name}"):
            found, better = task_results(model, tasks)
            results.append(found)
            directions |= better
    details: JsonObject = {"tasks": tasks.names, "scores": _compared(results[0], results[1], directions)}
    return {"base_model": results[0], "finetuned_model": results[1], "details": details}


def show_tasks(made: JsonObject, models: tuple[str, str], output: Format) -> None:
    """Print the scores side by side."""
    results: list[Results] = [made["base_model"], made["finetuned_model"]]
    rows = [
        (task, metric, *(_number(result.get(task, {}).get(metric)) for result in results))
        for task in results[0]
        for metric in results[0][task]
    ]
    names = list(models) if models[0] != models[1] else ["base", "candidate"]
    show(output, made, table(["TASK", "METRIC", *names], rows, right=names))


def _compared(base: Results, candidate: Results, directions: Mapping[str, str]) -> JsonObject:
    """Return the scores in the form that gates read, by "TASK/METRIC"."""
    found: JsonObject = {}
    for task, metrics in base.items():
        for metric, first in metrics.items():
            second = candidate.get(task, {}).get(metric)
            if second is not None:
                name = f"{task}/{metric}"
                percent = (second - first) / first * 100 if first > 0 else None
                found[name] = {
                    "better": directions.get(name, "higher"),
                    "base_model": {"value": first},
                    "finetuned_model": {"value": second},
                    "difference": {"value": second - first},
                    "percent": {"value": percent},
                }
    return found


def program() -> str:
    found = os.environ.get(PROGRAM_VARIABLE) or shutil.which("lm-eval")
    for folder in () if found else (CLONE, Path.cwd()):
        if (folder / _INSTALLED).is_file():
            return str((folder / _INSTALLED).absolute())
    if not found:
        raise ClientError(
            "FAILED_PRECONDITION",
            "lm-eval is not installed",
            f"{_how_to_install()}, or name the program in {PROGRAM_VARIABLE}",
        )
    return found


def _how_to_install() -> str:
    script = CLONE / "scripts" / "install-client"
    if script.is_file():
        return f"Run {script} lm-eval"
    return "Install `lm-eval[api]` with pip into an environment of its own and put its program on the path"


def task_results(model: Model, tasks: Tasks) -> tuple[Results, dict[str, str]]:
    """Return the scores, and the better direction of each "TASK/METRIC".

    Raises ClientError with the harness's last lines.
    """
    with tempfile.TemporaryDirectory(prefix="neo-lm-eval-") as scratch:
        command = [
            program(),
            "run",
            *_api_arguments(model, tasks),
            "--tasks",
            tasks.names,
            "--output_path",
            scratch,
        ]
        command += ["--include_path", "."] if tasks.folder else []
        command += ["--limit", str(tasks.limit)] if tasks.limit else []
        key = {KEY_VARIABLE: model.gateway.tokens.token(), "HF_HOME": scratch}
        ran = subprocess.run(
            command,
            cwd=tasks.folder,
            env={**os.environ, **_OFFLINE, **key},
            capture_output=True,
            text=True,
            check=False,
        )
        files = sorted(Path(scratch).rglob("results_*.json"))
        if ran.returncode or not files:
            raise ClientError("FAILED_PRECONDITION", f"lm-eval failed on {model.name}: {_why(ran.stderr)}")
        content = json.loads(files[-1].read_text(encoding="utf-8"))
        return _scores(content), _directions(content)


def _why(said: str) -> str:
    """Return the error of a traceback, or else the last lines."""
    lines = said.strip().splitlines() or ["it printed nothing"]
    return lines[-1] if "Traceback" in said else "\n".join(lines[-_LAST_LINES:])


def _api_arguments(model: Model, tasks: Tasks) -> list[str]:
    """Return the arguments for one of the harness's two API clients."""
    common = {"model": model.name, "num_concurrent": _AT_A_TIME, "max_retries": 3}
    if tasks.tokenizer:
        folder = Path(tasks.tokenizer)
        tokenizer = str(folder.absolute()) if folder.exists() else tasks.tokenizer
        url = f"{model.gateway.base_url}/completions"
        settings = {**common, "base_url": url, "tokenizer": tokenizer, "tokenized_requests": False}
        return ["--model", "local-completions", "--model_args", json.dumps(settings)]
    settings = {**common, "base_url": f"{model.gateway.base_url}/chat/completions"}
    return [
        "--model",
        "local-chat-completions",
        "--apply_chat_template",
        "--model_args",
        json.dumps(settings),
    ]


def _directions(content: JsonObject) -> dict[str, str]:
    listed: dict[str, dict[str, bool]] = content.get("higher_is_better") or {}
    return {
        f"{task}/{metric}": "higher" if is_higher else "lower"
        for task, metrics in listed.items()
        for metric, is_higher in metrics.items()
    }


def _scores(content: JsonObject) -> Results:
    found: Results = {}
    for task, values in content["results"].items():
        numbers = {
            name.removesuffix(",none"): value for name, value in values.items() if isinstance(value, float)
        }
        found[task] = {name: value for name, value in numbers.items() if "stderr" not in name}
    return found


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
