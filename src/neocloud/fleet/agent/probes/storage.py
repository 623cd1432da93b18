"""Mounts that are missing or became read-only, the room of filesystems, and NVMe controllers.

Only the host's own filesystems and those that are expected: a tenant can fill a volume of its own, and serve
one that does not answer, and neither is a fault of the node.
"""

from dataclasses import dataclass

from neocloud.fleet.agent.expected import Expected
from neocloud.fleet.agent.host_files import Tree
from neocloud.fleet.agent.probe_result import ProbeResult

MOUNT_TABLE = "proc/self/mountinfo"
ON_DISKS = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "bcachefs"})
REMOTE = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "ceph", "lustre", "gpfs", "beegfs", "9p", "virtiofs", "wekafs"}
)
OWN_MOUNTS = frozenset(
    ("/", "/boot", "/home", "/opt", "/srv", "/tmp", "/usr", "/var", "/var/lib", "/var/log", "/var/tmp")
)
"""Where a host's own filesystems are. Others count where the operator expects them."""
_ESCAPES = {"\\040": " ", "\\011": "\t", "\\012": "\n", "\\134": "\\"}
NVME = "sys/class/nvme"
NVME_LIVE = "live"


@dataclass(frozen=True)
class Mount:
    device: str
    point: str
    type: str
    is_asked_writable: bool
    """Whether the options of the mount allow writing."""
    is_writable: bool
    """Whether the filesystem allows writing: a kernel that found an error changes only this."""


def mounts(tree: Tree, expected: Expected) -> ProbeResult:
    found = ProbeResult()
    table = mounts_in(tree.text(MOUNT_TABLE))
    points = {each.point for each in table}
    for point in expected.mounts:
        found.read("mount_missing", point, int(point not in points))
    if not expected.mounts:
        found.leave_out("No mount is expected (mounts)", "mount_missing")
    wanted = OWN_MOUNTS.union(expected.mounts)
    watched = [each for each in table if each.type in ON_DISKS | REMOTE and each.point in wanted]
    for each in watched:
        is_changed = each.is_asked_writable and not each.is_writable
        found.read("mount_read_only", each.point, int(is_changed), "by the kernel" if is_changed else "")
    if not watched:
        found.leave_out("No filesystem of the host's own is on a disk or of a server", "mount_read_only")
    found.mounts = _to_ask(watched, expected)
    return found


def _to_ask(mounts: list[Mount], expected: Expected) -> list[str]:
    """Return a mount point of each filesystem, those that are expected first."""
    chosen = dict[str, str]()
    for each in sorted(mounts, key=lambda mount: mount.point not in expected.mounts):
        chosen.setdefault(each.device, each.point)
    return list(chosen.values())


def mounts_in(text: str) -> list[Mount]:
    """Return the mounts of a mountinfo; lines that are not of its form are left out."""
    found = dict[str, Mount]()
    for line in text.split("\n"):
        before, _, after = line.partition(" - ")
        fields, of_filesystem = before.split(" "), after.split(" ")
        if len(fields) < 6 or len(of_filesystem) < 3:
            continue
        point = fields[4]
        for escape, character in _ESCAPES.items():
            point = point.replace(escape, character)
        found[point] = Mount(  # a later mount covers an earlier one
            fields[2],
            point,
            of_filesystem[0],
            "rw" in fields[5].split(","),
            "rw" in of_filesystem[2].split(","),
        )
    return list(found.values())


def room(tree: Tree, point: str) -> ProbeResult:
    """Ask one filesystem for its room. May block for ever."""
    found = ProbeResult()
    try:
        has = tree.room(point)
    except OSError as error:
        for check in ("disk_used", "disk_full"):
            found.fail_to_read(check, point, error.strerror or error)
        return found
    if total := has.bytes_used + has.bytes_free:
        used = 100 * has.bytes_used / total
        note = f"{has.bytes_free / 2**30:.1f} GiB left"
        found.read("disk_used", point, used, note)
        found.read("disk_full", point, used, note)
    if has.inodes_total:
        used = 100 * (has.inodes_total - has.inodes_free) / has.inodes_total
        found.read("inodes_used", point, used)
        found.read("inodes_full", point, used)
    return found


def nvme(tree: Tree, expected: Expected) -> ProbeResult:
    found = ProbeResult()
    names = tree.names(NVME)
    for name in names:
        state = tree.optional(f"{NVME}/{name}/state")
        if state is None:
            found.fail_to_read("nvme_not_live", name, "the controller names no state")
        else:
            found.read("nvme_not_live", name, int(state != NVME_LIVE), state)
    if not names:
        found.leave_out("There is no NVMe controller here", "nvme_not_live")
    if expected.nvmes is None:
        found.leave_out("The expected number is not given (nvmes)", "nvme_missing")
    else:
        missing = max(0, expected.nvmes - len(names))
        found.read("nvme_missing", "", missing, f"{len(names)} of {expected.nvmes} controllers")
    return found
