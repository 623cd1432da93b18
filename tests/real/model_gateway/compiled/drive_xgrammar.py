"""Compile what comes on the standard input with the real xgrammar, each in a process that may be killed.

Run by the Python of `make clients`. A line of the input is `[kind, text, seconds]` in JSON, one of the output
`[what became of it, seconds of processor time, MiB]`. The bindings alone are loaded: no torch.
"""

import json
import os
import random
import resource
import signal
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

TOKENS, MEMORY_BYTES, STACK_BYTES = 30_000, 4 * 2**30, 8 * 2**20


def bindings() -> Any:
    (packages,) = Path(sys.prefix).glob("lib/python3*/site-packages")
    package = types.ModuleType("xgrammar")  # its own __init__ imports torch
    package.__path__ = [str(packages / "xgrammar")]
    sys.modules["xgrammar"] = package
    import xgrammar.load_binding
    import xgrammar.tvm_ffi_binding._ffi_api as api

    assert xgrammar.load_binding
    return api


def vocabulary() -> list[bytes]:
    """Return made-up tokens in the shares that vocabularies of models have."""
    chosen = random.Random(7)
    tokens = dict.fromkeys(bytes([each]) for each in range(256))
    while len(tokens) < TOKENS:
        tokens[_token(chosen).encode()] = None
    return list(tokens)


def _token(chosen: random.Random) -> str:
    kind = chosen.random()
    if kind < 0.7:
        syllables = range(chosen.randint(1, 4))
        word = "".join(chosen.choice("bcdfghklmnprstvwz") + chosen.choice("aeiou") for _ in syllables)
        return chosen.choice(["", " "]) + (word if kind < 0.6 else word.capitalize())
    if kind < 0.8:
        signs = range(chosen.randint(1, 5))
        return "".join(chosen.choice("!\"#$%&'()*+,-./:;<=>?@[]^_`{|}~\\ \n") for _ in signs)
    if kind < 0.85:
        return str(chosen.randint(0, 9999))
    first, last = (0x4E00, 0x9FA5) if kind < 0.93 else (0x430, 0x44F)
    return "".join(chr(chosen.randint(first, last)) for _ in range(chosen.randint(1, 5)))


def attempt(make: Callable[[], Any], seconds: int) -> tuple[str, float, float]:
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        _compile(make, seconds, writing)
    os.close(writing)
    with os.fdopen(reading) as answer:
        said = answer.read()
    _, status, usage = os.wait4(child, 0)
    if said:
        return json.loads(said)
    name = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else f"code {status}"
    return f"killed: {name}", usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def _compile(make: Callable[[], Any], seconds: int, writing: int) -> None:
    """Never return."""
    try:
        limits = {
            resource.RLIMIT_CPU: seconds,
            resource.RLIMIT_AS: MEMORY_BYTES,
            resource.RLIMIT_STACK: STACK_BYTES,
            resource.RLIMIT_CORE: 0,
        }
        for name, most in limits.items():
            resource.setrlimit(name, (most, most))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        started = time.process_time()
        try:
            make()
            became = "compiled"
        except Exception as error:  # noqa: BLE001  whatever its bindings raise
            became = "no memory" if "bad_alloc" in str(error) else "refused"
        used = time.process_time() - started
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        os.write(writing, json.dumps([became, used, grown / 1024]).encode())
    finally:
        os._exit(0)


def main() -> None:
    api = bindings()
    tokens = api.TokenizerInfo(vocabulary(), 0, None, [255], False)
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        kind, text, seconds = json.loads(line)

        def make(kind: str = kind, text: str = text) -> Any:
            """Compile as vLLM does, with one thread."""
            compiler = api.GrammarCompiler(tokens, 1, True, 512 * 2**20)
            return {
                "regex": lambda: compiler.compile_regex(text),
                "json": lambda: compiler.compile_json_schema(text, True, None, None, True, None, False),
                "ebnf": lambda: compiler.compile_grammar_from_strings(text, "root"),
                "lark": lambda: compiler.compile_lark(text, [], []),
                "structural_tag": lambda: compiler.compile_structural_tag(text),
            }[kind]()

        print(json.dumps(attempt(make, seconds)), flush=True)


if __name__ == "__main__":
    main()
