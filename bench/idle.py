"""Measure how much processor time an idle cloud takes: its server, Podman's service, its gateway.

    python bench/idle.py [--seconds 60] [--workers 1] [--images FOLDER]

Starts a cloud in a temporary folder, creates one Slurm cluster, waits until nothing changes any more, and
prints the share of one core that each process of the control plane took, and what the pods took together.
Needs root, Podman and built images (`.cache/images`); removes the cloud at the end.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from neocloud.engines.podman.layout import Layout  # noqa: E402
from tests.e2e.cloud import Cloud  # noqa: E402
from tests.e2e.cluster import Cluster  # noqa: E402

SETTLE_SECONDS = 30.0


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--images", type=Path, default=ROOT / ".cache" / "images")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="neocloud-idle-"))
    cloud = Cloud.prepare(folder, options.images.absolute())
    try:
        cloud.up()
        Cluster.create(cloud, "idle", "--workers", str(options.workers))
        time.sleep(SETTLE_SECONDS)
        report(cloud, options.seconds)
    finally:
        cloud.neo("destroy", "--yes")
        shutil.rmtree(folder, ignore_errors=True)


def report(cloud: Cloud, seconds: float) -> None:
    layout = Layout.of(cloud.home)
    before = cpu_seconds(layout)
    began = time.monotonic()
    time.sleep(seconds)
    after = cpu_seconds(layout)
    passed = time.monotonic() - began
    shares = {name: 100 * (used - before.get(name, 0.0)) / passed for name, used in after.items()}
    control_plane = sum(share for name, share in shares.items() if name != "pods")
    for name, share in sorted(shares.items(), key=lambda item: -item[1]):
        print(f"{name:<20} {share:6.2f} % of a core")
    print(f"{'control plane':<20} {control_plane:6.2f} % of a core over {passed:.0f} s")


def cpu_seconds(layout: Layout) -> dict[str, float]:
    """Return processor seconds so far, with those of ended children, by role."""
    found: dict[str, float] = {}
    for process in psutil.process_iter():
        try:
            role = role_of(process, layout)
            if role:
                times = process.cpu_times()
                ended = 0.0 if role == "pods" else times.children_user + times.children_system
                found[role] = found.get(role, 0.0) + times.user + times.system + ended
        except psutil.Error:
            continue
    return found


def role_of(process: psutil.Process, layout: Layout) -> str:
    """Return which part of the cloud a process is; an empty text for processes of others."""
    words = process.cmdline()
    line = " ".join(words)
    if f"unix://{layout.socket}" in line:
        return "podman service"
    if layout.cgroup.lstrip("/") in Path(f"/proc/{process.pid}/cgroup").read_text():
        return "pods"
    if words and Path(words[0]).name.startswith("conmon"):
        return ""
    if process.environ().get("NEOCLOUD_HOME") == str(layout.home) or str(layout.home) in line:
        return "gateway" if "neocloud.gateway" in line else "server" if "neocloud" in line else ""
    return ""


if __name__ == "__main__":
    if os.geteuid() != 0:
        sys.exit("Run it as root: the cloud uses Podman.")
    main()
