"""The configuration files that keep our Podman apart from any other on the machine.

Pure. Everything Podman writes lies under the home folder and, until the next boot, under /run/neocloud-<id>;
except one address list that netavark shares between all root Podmans under /run/containers.
"""

import json
from pathlib import Path

from neocloud.engines.podman.host import Host
from neocloud.engines.podman.layout import Layout

MAX_LOG_BYTES = 64 * 1024 * 1024
_EVENTS_SIZE_MAX = 10 * 1000 * 1000
MAX_PROCESSES = 32768
_EXEC_KEPT_SECONDS = 10
"""How long the exit code of a finished `exec` can be asked for; a process waits around for each."""


def render_configuration(layout: Layout, host: Host, *, is_in_home: bool = False) -> dict[str, str]:
    """File name to content, for the folder `layout.podman`.

    `is_in_home`: Podman knows its files by their paths in the home, as in homes made by earlier versions; it
    keeps those paths in its records and cannot change them.
    """
    folder = layout.podman if is_in_home else layout.podman_view
    return {
        "containers.conf": _containers_conf(layout, host, folder),
        "storage.conf": _storage_conf(layout, folder, is_in_home),
        "registries.conf": "unqualified-search-registries = []\n",
    }


def is_kept_in_home(layout: Layout) -> bool:
    """Whether the configuration that is there names Podman's files by their paths in the home."""
    known = layout.podman / "storage.conf"
    return known.exists() and _graph_root(layout.podman) in known.read_text()


def environment(layout: Layout) -> dict[str, str]:
    """Variables that make podman read these files and no others."""
    return {
        "CONTAINERS_CONF": str(layout.podman / "containers.conf"),
        "CONTAINERS_STORAGE_CONF": str(layout.podman / "storage.conf"),
        "CONTAINERS_REGISTRIES_CONF": str(layout.podman / "registries.conf"),
        "TMPDIR": str(layout.podman / "tmp"),
        "PODMAN_IGNORE_CGROUPSV1_WARNING": "1",
    }


def _containers_conf(layout: Layout, host: Host, folder: Path) -> str:
    limits = [f"{name}={soft}:{hard}" for name, soft, hard in host.limits]
    # static_dir stays unset: the clean-up process that conmon starts gets --root and derives it from that;
    # with another static_dir it would not find the container and never restart it.
    return f"""\
[containers]
default_ulimits = {json.dumps(limits)}
log_driver = "k8s-file"
log_size_max = {MAX_LOG_BYTES}
pids_limit = {MAX_PROCESSES}
init_path = {json.dumps(host.init)}

[engine]
runtime = {json.dumps(host.runtime)}
cgroup_manager = "cgroupfs"
events_logger = "file"
events_logfile_max_size = {json.dumps(str(_EVENTS_SIZE_MAX))}
lock_type = "file"
exit_command_delay = {_EXEC_KEPT_SECONDS}
tmp_dir = {json.dumps(str(layout.run / "libpod"))}
volume_path = {json.dumps(str(folder / "volumes"))}
image_copy_tmp_dir = {json.dumps(str(layout.podman / "tmp"))}
helper_binaries_dir = ["/usr/libexec/podman", "/usr/lib/podman", "/usr/local/libexec/podman"]

[network]
network_backend = "netavark"
network_config_dir = {json.dumps(str(layout.podman / "networks"))}
"""


def _storage_conf(layout: Layout, folder: Path, is_in_home: bool) -> str:
    # Below a shared mount, as `podman_view` is, the driver has to make its own folder private.
    private = '\n[storage.options.overlay]\nskip_mount_home = "true"\n' if is_in_home else ""
    return f"""\
[storage]
driver = "overlay"
{_graph_root(folder)}
runroot = {json.dumps(str(layout.runroot))}
{private}"""


def _graph_root(folder: Path) -> str:
    return f"graphroot = {json.dumps(str(folder / 'storage'))}"
