"""Read one document and split it, in a process of its own (`python -m` and the name of this module).

The document is standard input, an open file. Standard output gets a line of JSON for each chunk, and one at
the end. Before the process parses a byte it gives up what it does not need: memory and time beyond a bound,
writing files, starting programs, and where it is root, the user, all capabilities and the network.
"""

import ctypes
import importlib
import json
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from neocloud.model_gateway.retrieval.chunks import split_text
from neocloud.model_gateway.retrieval.documents import UnreadableDocument, document_text, invalid

MEMORY_BYTES = 1 << 30
CPU_SECONDS = 60
MOST_SECONDS = 300.0
"""Limit by the clock, for a busy machine."""
MAX_CHUNKS = 20_000
"""Chunks of one file."""
MAX_LINE_BYTES = 1 << 20
LIMITS = {
    resource.RLIMIT_AS: MEMORY_BYTES,
    resource.RLIMIT_CPU: CPU_SECONDS,
    resource.RLIMIT_FSIZE: 0,
    resource.RLIMIT_NOFILE: 16,
    resource.RLIMIT_NPROC: 0,
    resource.RLIMIT_CORE: 0,
}
CODECS = ("utf-8-sig", "utf-16")
PDF_CODECS = (
    *("utf-16-be", "utf-16-le", "latin-1", "cp1252", "mac-roman", "unicode-escape", "gbk", "gb18030"),
    *("big5", "shift_jis", "cp932", "euc_jp", "euc_kr", "cp949"),
)
NOBODY = 65534
_NO_NEW_PRIVS = 38  # linux/prctl.h
_NEW_NETWORK = 0x40000000  # linux/sched.h


class ReadingFailed(Exception):
    """The process did not end as it should, which is most likely the document's doing."""


def read_document(path: Path, name: str, max_tokens: int, overlap_tokens: int) -> Iterator[str]:
    """Yield the chunks of a document as a process reads them.

    Raises UnreadableDocument, ReadingFailed, OSError.
    """
    options = json.dumps({"name": name, "max_tokens": max_tokens, "overlap_tokens": overlap_tokens})
    command = [sys.executable, "-m", __name__, options]
    with (
        path.open("rb") as document,
        subprocess.Popen(
            command, stdin=document, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=_environment()
        ) as process,
    ):
        timer = threading.Timer(MOST_SECONDS, process.kill)
        timer.start()
        try:
            assert process.stdout is not None
            yield from _chunks(process.stdout)
        finally:
            timer.cancel()
            process.kill()


def _environment() -> dict[str, str]:
    return {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "LANG") if name in os.environ}


def _chunks(output: IO[bytes]) -> Iterator[str]:
    """Yield chunks until the line that ends them."""
    count = 0
    while line := output.readline(MAX_LINE_BYTES):
        try:
            found = json.loads(line)
        except ValueError:
            break
        if isinstance(found, str):
            count += 1
            if count > MAX_CHUNKS:
                raise invalid(
                    f"The file has more than {MAX_CHUNKS} chunks. Split it, or choose larger chunks."
                )
            yield found
        elif found.get("chunks") == count:
            return
        else:
            raise UnreadableDocument(str(found.get("code")), str(found.get("message")))
    raise ReadingFailed


def give_up_rights() -> None:
    """Leave nothing but reading standard input and writing standard output."""
    os.nice(10)
    libc = ctypes.CDLL(None, use_errno=True)
    if os.geteuid() == 0:
        libc.unshare(_NEW_NETWORK)  # refused in some containers, where other limits hold
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0)
    for limited, most in LIMITS.items():
        resource.setrlimit(limited, (most, most))


def _load(name: str, is_pdf: bool) -> None:
    """Import what could not be imported as another user."""
    is_pdf = is_pdf or name.lower().endswith(".pdf")
    for codec in (*CODECS, *(PDF_CODECS if is_pdf else ())):
        "".encode(codec)
    if is_pdf:
        for module in ("pypdf", "pypdf._codecs.core_font_metrics", "pypdf._text_extraction"):
            importlib.import_module(module)


def main(options: str) -> None:
    given = json.loads(options)
    document = os.fdopen(0, "rb")
    _load(given["name"], os.pread(0, 1024, 0).lstrip().startswith(b"%PDF-"))
    give_up_rights()
    count = 0
    try:
        text = document_text(document, given["name"])
        for chunk in split_text(text, given["max_tokens"], given["overlap_tokens"]):
            sys.stdout.write(json.dumps(chunk) + "\n")
            count += 1
            if count > MAX_CHUNKS:
                break
        end: dict[str, object] = {"chunks": count}
    except UnreadableDocument as error:
        end = {"code": error.code, "message": error.message}
    except (MemoryError, RecursionError):
        end = {"code": "invalid_file", "message": "The file needs too much memory to be read. Split it."}
    sys.stdout.write(json.dumps(end) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
