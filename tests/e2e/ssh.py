"""ssh to a machine that is still booting."""

import subprocess
import time
from pathlib import Path

DEADLINE_SECONDS = 400.0
OPTIONS = (
    "BatchMode=yes",
    "ConnectTimeout=5",
    "StrictHostKeyChecking=no",
    "UserKnownHostsFile=/dev/null",
    "LogLevel=ERROR",
)


def ssh_until(key: Path, user: str, address: str, command: str, *, seconds: float = DEADLINE_SECONDS) -> str:
    """Return the output of the command, once it can be run: tried again until the machine accepts the
    connection.
    """
    options = [word for option in OPTIONS for word in ("-o", option)]
    words = ["ssh", "-i", str(key), *options, f"{user}@{address}", command]
    deadline = time.monotonic() + seconds
    while True:
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
        if done.returncode == 0:
            return done.stdout
        # 255 is ssh's own failure: nobody listens yet, or the key is not there yet.
        said = f"ssh {user}@{address}: {done.returncode}\n{done.stdout}{done.stderr}"
        assert done.returncode == 255 and time.monotonic() < deadline, said
        time.sleep(0.5)
