"""Container images made on the spot, and a registry for them.

The registry is a test double of the network: the part of the OCI distribution protocol that reads, served
from OCI layouts by Python's standard library on the login node, without TLS.
"""

import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

BUSYBOX = Path("/bin/busybox")
PROGRAMS = (
    "sh",
    "cat",
    "touch",
    "echo",
    "true",
    "sleep",
    "id",
    "ls",
    "head",
    "env",
    "pwd",
    "hostname",
    "stat",
    "mkdir",
    "rm",
    "grep",
    "sed",
    "mount",
    "wc",
)

REGISTRY = """
import http.server, json, pathlib, socketserver, sys, time
root = pathlib.Path(sys.argv[1])
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        with (root / "asked").open("a") as log:
            log.write(self.path + "\\n")
        *_, kind, which = ["", ""] + self.path.split("?")[0].split("/")
        name = self.path.removeprefix("/v2/").removesuffix(f"/{kind}/{which}")
        name = name if kind in ("manifests", "blobs") else ""
        if name == "hangs":
            time.sleep(600)
        blobs = root / name / "blobs" / "sha256"
        if not name or not (root / name).is_dir():
            status, body, sort = (404, b'{"errors":[{"code":"NAME_UNKNOWN","message":"name unknown"}]}', "")
            if self.path == "/v2/":
                status, body = 200, b"{}"
            return self.answer(status, body, "application/json")
        if kind == "manifests" and not which.startswith("sha256:"):
            which = json.loads((root / name / "index.json").read_text())["manifests"][0]["digest"]
        body = (blobs / which.removeprefix("sha256:")).read_bytes()
        sort = json.loads(body)["mediaType"] if kind == "manifests" else "application/octet-stream"
        self.answer(200, body, sort)
    do_HEAD = do_GET
    def answer(self, status, body, sort):
        self.send_response(status)
        self.send_header("Content-Type", sort)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)
    def log_message(self, *_):
        pass
class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
server = Server(("0.0.0.0", 0), Handler)
(root / "port.new").write_text(str(server.server_port))
(root / "port.new").rename(root / "port")
server.serve_forever()
"""
"""Run with a folder of OCI layouts; writes its port there, and every path it was asked for."""


def busybox_layer(files: Mapping[str, str] | None = None) -> bytes:
    """Return a layer with one static program under many names, and more files."""

    def fill(archive: tarfile.TarFile) -> None:
        for folder in ("bin", "etc", "tmp", "work"):
            add(archive, folder, kind=tarfile.DIRTYPE, mode=0o755)
        add(archive, "bin/busybox", BUSYBOX.read_bytes(), mode=0o755)
        for program in PROGRAMS:
            add(archive, f"bin/{program}", kind=tarfile.SYMTYPE, target="busybox")
        add(archive, "bin/bash", b'#!/bin/sh\nexec /bin/sh "$@"\n', mode=0o755)
        for name, text in {
            "etc/passwd": "root:x:0:0::/:/bin/sh\n",
            "etc/made-by": "test\n",
            **(files or {}),
        }.items():
            add(archive, name, text.encode())

    return layer(fill)


def layer(fill: Callable[[tarfile.TarFile], None]) -> bytes:
    with io.BytesIO() as buffer:
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            fill(archive)
        return buffer.getvalue()


def add(
    archive: tarfile.TarFile,
    name: str,
    content: bytes = b"",
    *,
    kind: bytes = tarfile.REGTYPE,
    target: str = "",
    mode: int = 0o644,
) -> None:
    """Add an entry of any kind, with any name."""
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname, entry.mode, entry.size = kind, target, mode, len(content)
    if kind in (tarfile.CHRTYPE, tarfile.BLKTYPE):
        entry.devmajor, entry.devminor = 1, 5
    archive.addfile(entry, io.BytesIO(content))


def write_layout(
    folder: Path,
    layers: Sequence[bytes],
    settings: Mapping[str, Any] | None = None,
    *,
    architecture: str = "amd64",
    claimed_size: int = 0,
) -> Path:
    """Write an image as an OCI layout; its last layer may claim a size that it does not have."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def put(kind: str, content: bytes) -> dict[str, Any]:
        digest = hashlib.sha256(content).hexdigest()
        (blobs / digest).write_bytes(content)
        media_type = f"application/vnd.oci.image.{kind}"
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}

    described = [put("layer.v1.tar", content) for content in layers]
    configuration = {
        "architecture": architecture,
        "os": "linux",
        "config": dict(settings or {}),
        "rootfs": {"type": "layers", "diff_ids": [entry["digest"] for entry in described]},
    }
    config = put("config.v1+json", json.dumps(configuration).encode())
    if claimed_size:
        described[-1]["size"] = claimed_size
    manifest = {"schemaVersion": 2, "config": config, "layers": described}
    manifest["mediaType"] = "application/vnd.oci.image.manifest.v1+json"
    listed = put("manifest.v1+json", json.dumps(manifest).encode())
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [listed]}))
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return folder


def write_docker_archive(path: Path, content: bytes) -> Path:
    """Write an image of one layer as `docker save` does."""
    configuration = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(content).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": ["tiny:1"], "Layers": ["layer.tar"]}]
    with tarfile.open(path, "w") as archive:
        add(archive, "config.json", json.dumps(configuration).encode())
        add(archive, "layer.tar", content)
        add(archive, "manifest.json", json.dumps(manifest).encode())
    return path
