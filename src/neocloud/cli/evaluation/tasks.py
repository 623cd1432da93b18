"""Run tasks of lm-eval (EleutherAI's evaluation harness) against two served models.

The harness is a separately installed program. It receives the address and, through its environment, a key.
Tasks and their data are local.
"""

import json
import os
import shutil
import subprocess
import tempfile
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


def run_tasks(base: Model, candidate: Model, tasks: Tasks, output: Format) -> None:
    """Run them on both and print the scores side by side."""
    results: list[dict[str, dict[str, float]]] = []
    for model in (base, candidate):
        with stage(f"Run {tasks.names} on {model.name}"):
            results.append(task_results(model, tasks))
    rows = [
        (task, metric, *(_number(result.get(task, {}).get(metric)) for result in results))
        for task in results[0]
        for metric in results[0][task]
    ]
    names = [base.name, candidate.name] if base.name != candidate.name else ["base", "candidate"]
    made = {"base_model": results[0], "finetuned_model": results[1], "details": {"tasks": tasks.names}}
    show(output, made, table(["TASK", "METRIC", *names], rows, right=names))


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


def task_results(model: Model, tasks: Tasks) -> dict[str, dict[str, float]]:
    """Return scores by task and metric. Raises ClientError with the harness's last lines."""
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
        return _scores(json.loads(files[-1].read_text(encoding="utf-8")))


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


def _scores(content: JsonObject) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for task, values in content["results"].items():
        numbers = {
            name.removesuffix(",none"): value for name, value in values.items() if isinstance(value, float)
        }
        found[task] = {name: value for name, value in numbers.items() if "stderr" not in name}
    return found


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
