"""Child processes start by vfork: nothing asks subprocess for what only fork can do.

With `preexec_fn`, `user`, `group` or `extra_groups` CPython calls fork. Then the handlers that gRPC registers
with pthread_atfork run in the child of a process with threads, which may crash it (SIGSEGV before the program
starts). Put `setpriv` before the command instead.
"""

import ast
import re
from collections.abc import Iterator

from tests import ROOT

STARTS = {"run", "Popen", "call", "check_call", "check_output", "create_subprocess_exec"}
FORKING = {"preexec_fn", "user", "group", "extra_groups"}
FORKS = {"os.fork", "os.forkpty", "pty.fork", "pty.spawn"}
ALONE = {
    *("tests/e2e/security/escape.py", "tests/real/object_store/crash_worker.py"),
    *("src/neocloud/fleet/agent/child.py", "tests/fast/fleet/agent/probe_program.py"),
    *("tests/real/model_gateway/compiled/drive_xgrammar.py", "tests/neo_server/server.py"),
}
"""Programs of their own that load no gRPC, or have one thread when they fork."""


MAY_FORK = re.compile(r"fork|pty|preexec_fn|\b(user|group|extra_groups)\s*=")
"""What a source that asks for it has; parsing the others took six seconds."""


def forking(source: str) -> Iterator[str]:
    if not MAY_FORK.search(source):
        return
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        if name in FORKS:
            yield name
        is_start = name.rpartition(".")[0] in ("subprocess", "asyncio") and name.rpartition(".")[2] in STARTS
        if is_start and (asked := {word.arg for word in node.keywords} & FORKING):
            yield f"{name}: {sorted(filter(None, asked))}"


def test_the_search_sees_calls() -> None:
    assert list(forking("subprocess.run(['id'], user=1)")) == ["subprocess.run: ['user']"]
    assert list(forking("await asyncio.create_subprocess_exec('id', preexec_fn=f)"))
    assert list(forking("os.fork()")) == ["os.fork"]
    assert not list(forking("job.run(user=1); subprocess.run(['id'], umask=0o22)"))


def test_no_process_that_may_run_grpc_forks() -> None:
    files = [file for folder in ("src", "tests", "bench") for file in (ROOT / folder).rglob("*.py")]
    assert len(files) > 500
    found = {str(file.relative_to(ROOT)): list(forking(file.read_text())) for file in files}
    assert not {name: calls for name, calls in found.items() if calls and name not in ALONE}
