"""A process that behaves like the server towards `neo up`, `down`, `destroy` and `status`, without an engine.

    python -m tests.real.cli.stub_server --home H ...

A file `fail-start` in the state folder makes it refuse to start.
"""

import argparse
import json
import os
import signal
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from neocloud import __version__
from neocloud.control_plane.prepared_server import PREPARED, has_turn
from neocloud.control_plane.settings_file import read_settings, shown_document
from tests.fast.cli.fake_control_plane import (
    CLUSTERS,
    PROJECT,
    TENANT,
    cluster,
    running_server,
    serve_clusters,
)

STATUS = {
    "version": __version__,
    "database": "sqlite",
    "services": ["iam", "slurm"],
    "certificate": {
        "file": "/tls/server.pem", "ends_at": "2026-11-30T09:30:00+00:00", "is_own": True,
        "is_expired": False, "problem": "The certificate /tls/server.pem expires soon.",
    },
    "engine": {
        "engine": "podman", "version": "4.3.1", "cpus": 2, "memory_mib": 24000, "accelerators": [],
        "enforces_cpu": True, "enforces_memory": True, "enforces_volume_size": False,
        "isolates_namespaces": True,
        "details": {"runtime": "runc"}, "warnings": ["Open files are limited to 1024."],
    },
}  # fmt: skip


class Pages(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        answer = {"/healthz": {"status": "ready"}, "/status": STATUS}.get(self.path)
        is_allowed = self.path == "/healthz" or self.headers.get("authorization", "").startswith(
            "Bearer token-"
        )
        self.send_response(200 if answer and is_allowed else 401)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def main() -> int:
    if sys.argv[-1] == PREPARED and not has_turn():
        return 0
    parser = argparse.ArgumentParser()
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--stop-workloads", action="store_true")
    parser.add_argument("--destroy-workloads", action="store_true")
    options, _ = parser.parse_known_args()
    with (options.home / "calls").open("a") as calls:
        calls.write(" ".join(sys.argv[1:]) + "\n")
    if options.stop_workloads or options.destroy_workloads:
        return 0
    if (options.home / "fail-start").exists():
        sys.stderr.write("neocloud: Port 7370 is taken. Choose another with --grpc-port.\n")
        return 1
    serve(options.home)
    return 0


def serve(home: Path) -> None:
    with running_server() as cloud:
        serve_clusters(cloud, cluster("bank"))
        assert f"{CLUSTERS}/List" in cloud.methods
        pages = ThreadingHTTPServer(("127.0.0.1", 0), Pages)
        credentials = json.loads((home.parent / "credentials.json").read_text())
        credentials |= {"endpoint": cloud.endpoint, "tenant-id": TENANT, "project-id": PROJECT}
        (home / "credentials.json").write_text(json.dumps(credentials))
        ready = {
            "grpc": cloud.endpoint,
            "http": f"127.0.0.1:{pages.server_port}",
            "pid": os.getpid(),
            "version": __version__,
            "settings": shown_document(read_settings(home)),
        }
        (home / "server.json.new").write_text(json.dumps(ready))
        (home / "server.json.new").replace(home / "server.json")
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        pages.serve_forever()


if __name__ == "__main__":
    sys.exit(main())
