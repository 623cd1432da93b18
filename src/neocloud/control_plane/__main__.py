"""The server's program: run a control plane in the foreground until SIGTERM or SIGINT.

    python -m neocloud.control_plane --home /var/lib/neocloud

Workloads keep running when it stops; `--stop-workloads` and `--destroy-workloads` (what `neo down` and `neo
destroy` call) end them. With `--prepared`, it imports everything and waits for its turn: its supervisor
writes the path of a log file to its standard input, or closes it, which ends the process.
"""

import gc
import sys


def main() -> int:
    # Imported modules stay until the end. Looking for garbage in them takes an eighth of the start.
    gc.disable()
    from neocloud.control_plane.program import run  # noqa: PLC0415

    gc.freeze()
    gc.enable()
    return run()


if __name__ == "__main__":
    sys.exit(main())
