"""An engine asks for its key on every path, and fetches nothing from other hosts."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from neocloud.services.inference.model_server_key import COMPILE_NICENESS, MODULE, RequireKey
from neocloud.services.inference.reconcile.slurm_job import SCRIPT
from neocloud.services.inference.render import (
    KEY_FOLDER,
    ModelServerView,
    ReplicaView,
    foundation,
    replica_pod,
    server_arguments,
    server_variables,
)

KEY = "key-of-the-engine"
PATHS = ("/v1/models", "/tokenize", "/metrics", "/sleep", "/openapi.json", "//health", "/health/", "/none")


async def _ok(request: Any) -> JSONResponse:
    return JSONResponse({})


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> httpx.AsyncClient:
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    app = Starlette(routes=[Route("/{path:path}", _ok, methods=["GET", "POST", "OPTIONS"])])
    app.add_middleware(RequireKey)  # as vLLM does
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://engine")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
async def test_every_path_needs_the_key(engine: httpx.AsyncClient, path: str, method: str) -> None:
    for headers in (
        {},
        {"authorization": ""},
        {"authorization": "Bearer "},
        {"authorization": f"Basic {KEY}"},
        {"authorization": f"Bearer {KEY}x"},
        [("authorization", f"Bearer {KEY}"), ("authorization", "Bearer x")],
    ):
        assert (await engine.request(method, path, headers=headers)).status_code == 401
    given = {"authorization": f"Bearer {KEY}"}
    assert (await engine.request(method, path, headers=given)).status_code == 200


async def test_health_is_open(engine: httpx.AsyncClient) -> None:
    assert (await engine.get("/health")).status_code == 200


def test_an_engine_without_a_key_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "")
    with pytest.raises(RuntimeError):
        RequireKey(Starlette())  # type: ignore[arg-type]


def test_engines_are_told_so() -> None:
    view = ModelServerView(served_name="bank", context_length=1, max_concurrency=1, cache_gib=1)
    words = server_arguments(view, "/model", host="0.0.0.0", port=1)
    assert words[words.index("--middleware") + 1] == f"{MODULE}.RequireKey"
    assert words[words.index("--allowed-media-domains") + 1].endswith(".invalid")
    assert "--allowed-local-media-path" not in words and "--api-key" not in words
    assert server_variables(view)["VLLM_MEDIA_URL_ALLOW_REDIRECTS"] == "0"


def test_a_job_of_a_cluster_brings_the_module_with_it(tmp_path: Path) -> None:
    """The script runs a Python in the engine's place, which imports the module as the engine does."""
    key = tmp_path / "key"
    key.write_text(KEY)
    script = tmp_path / "job"
    script.write_text(SCRIPT)
    check = f"import {MODULE}, os; {MODULE}.RequireKey(None); print(os.environ['PYTHONPATH'])"
    command = ["bash", str(script), str(key), "1", sys.executable, "-c", check]
    environment = {"PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    assert not Path(done.stdout.strip()).exists()


VLLM = """
import os, threading
class StructuredOutputManager:
    def _create_grammar(self, request):
        return request, os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
"""
COMPILES = """
import os
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import entry_points
for plugin in entry_points(group="vllm.general_plugins"):
    plugin.load()()
from vllm.v1.structured_output import StructuredOutputManager
manager = StructuredOutputManager()
print(*ThreadPoolExecutor(1).submit(manager._create_grammar, "a").result())
print(*manager._create_grammar("b"))
"""
"""As vLLM does: in a thread of a pool, or itself where it does not compile beside."""


def fake_vllm(folder: Path, source: str) -> Path:
    package = folder / "vllm" / "v1"
    package.mkdir(parents=True)
    for each in (folder / "vllm", package):
        (each / "__init__.py").touch()
    (package / "structured_output.py").write_text(source)
    return folder


def in_pod(folder: Path, program: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the files and the command of a replica's pod, in place of vLLM."""
    _, _, secret = foundation("inferencedeployment-e00one", "bank", KEY.encode())
    files = folder / "files"
    files.mkdir()
    for name, content in secret.contents.items():  # type: ignore[attr-defined]
        (files / name).write_bytes(content)
    server = ModelServerView(served_name="bank", context_length=1, max_concurrency=1, cache_gib=1)
    pod = replica_pod(
        ReplicaView("r", "bank", "image", Path("/m"), None, cpus=1, memory_mib=1, server=server)
    )
    shell = [each.replace(KEY_FOLDER, str(files)) for each in pod.containers[0].command]
    program = f"import sys; sys.path.insert(0, {str(folder)!r})\n{program}"
    environment = {"PATH": "/usr/bin:/bin", "TMPDIR": str(folder)}
    command = [*shell, sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)


def test_what_callers_have_compiled_gives_way_to_chats(tmp_path: Path) -> None:
    """In a process of its own: a thread cannot take its priority back."""
    done = in_pod(fake_vllm(tmp_path, VLLM), COMPILES)
    assert done.stdout.splitlines() == [f"a {COMPILE_NICENESS}", "b 0"], done.stderr


@pytest.mark.parametrize("source", ["", "class StructuredOutputManager: pass", "raise ImportError('no')"])
def test_a_vllm_that_compiles_in_another_way_starts_and_says_so(tmp_path: Path, source: str) -> None:
    done = in_pod(fake_vllm(tmp_path, source), COMPILES.partition("from vllm")[0])
    assert done.returncode == 0
    assert "compiled with the priority of chats" in done.stderr
