"""A registry of container images on a cluster's login node.

It is a test double of the network: the part of the OCI distribution protocol that reads, served from OCI
layouts by Python's standard library, without TLS.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from neocloud.testing.waiting import wait_until
from tests.e2e.cluster import SHARED, Cluster

IMAGES = f"{SHARED}/images"
"""The folder of images in the shared root."""

CONFIGURATION = """
[[registry]]
location = "{address}"
insecure = true
[[registry]]
location = "docker.io"
[[registry.mirror]]
location = "{address}"
insecure = true
"""
"""Configuration of a user: the registry has no TLS, and names without a registry lead to it before Docker
Hub.
"""

REGISTRY = """
import base64, http.server, json, pathlib, socketserver, sys, time
root = pathlib.Path(sys.argv[1])
PASSWORD = base64.b64encode(b"ann:secret").decode()
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        with (root / "asked").open("a") as log:
            log.write(self.path + "\\n")
        *_, kind, which = ["", ""] + self.path.split("?")[0].split("/")
        name = self.path.removeprefix("/v2/").removesuffix(f"/{kind}/{which}")
        name = name if kind in ("manifests", "blobs") else ""
        if name == "hangs":
            time.sleep(600)
        if name == "private" and self.headers["Authorization"] != "Basic " + PASSWORD:
            return self.answer(401, b"{}", "application/json")
        blobs = root / name / "blobs" / "sha256"
        if not name or not (root / name).is_dir():
            status, body, sort = (404, b'{"errors":[{"code":"NAME_UNKNOWN","message":"name unknown"}]}', "")
            if self.path == "/v2/":
                status, body = 200, b"{}"
            return self.answer(status, body, "application/json")
        if kind == "manifests" and not which.startswith("sha256:"):
            which = json.loads((root / name / "index.json").read_text())["manifests"][0]["digest"]
        body = (blobs / which.removeprefix("sha256:")).read_bytes()
        if name == "stalls" and len(body) > 100_000:
            self.answer(200, body, "application/octet-stream", len(body) // 2)
            time.sleep(600)
        sort = json.loads(body)["mediaType"] if kind == "manifests" else "application/octet-stream"
        self.answer(200, body, sort)
    do_HEAD = do_GET
    def answer(self, status, body, sort, sent=None):
        self.send_response(status)
        self.send_header("WWW-Authenticate", 'Basic realm="images"')
        self.send_header("Content-Type", sort)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body[:sent])
            self.wfile.flush()
    def log_message(self, *_):
        pass
class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
server = Server(("0.0.0.0", 0), Handler)
(root / "port.new").write_text(str(server.server_port))
(root / "port.new").rename(root / "port")
server.serve_forever()
"""
"""Run with a folder of OCI layouts; writes its port there, and every path that it was asked for.

`private` needs a password, `hangs` does not answer, `stalls` sends half of a layer.
"""


@contextmanager
def serving(bank: Cluster, folder: Path) -> Iterator[str]:
    """Put images into the shared root; yield the address of a registry that has them, too."""
    assert folder.name == "images"
    bank.copy_in(folder, SHARED)
    bank.ssh(f"cat > {IMAGES}/registry.py", stdin=REGISTRY)
    bank.ssh(
        f"nohup python3 {IMAGES}/registry.py {IMAGES} >/dev/null 2>&1 </dev/null & echo $! >{IMAGES}/process"
    )
    wait_until(lambda: bank.try_ssh(f"cat {IMAGES}/port").stdout, "the registry listens")
    address = f"login-0:{bank.ssh(f'cat {IMAGES}/port')}"
    bank.ssh(
        "mkdir -p ~/.config/containers; cat > ~/.config/containers/registries.conf",
        stdin=CONFIGURATION.format(address=address),
    )
    try:
        yield address
    finally:
        bank.ssh(f"kill $(cat {IMAGES}/process); rm -rf {IMAGES} ~/.config/containers ~/.cache/neocloud")


def run(bank: Cluster, options: str, command: str = "true", *, code: int = 0, where: str = SHARED) -> str:
    """Run a step; return what it and srun print. A `code` that is not 0 stands for any failure."""
    done = bank.try_ssh(f"cd {where} && srun --quiet {options} {command} 2>&1", seconds=240)
    assert (done.returncode != 0) == (code != 0), done.stdout + done.stderr
    return done.stdout.strip()
