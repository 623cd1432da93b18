"""Print, as JSON, what a job with one CPU can use of its node. Runs as one task on each node."""

import json
import os
import resource


def soft_limit(kind: int) -> int:
    """Return the soft limit, -1 for none."""
    return resource.getrlimit(kind)[0]


def own_memory_limit() -> int:
    """Return the kernel's limit, in bytes, of the control group that this process is in; -1 for none."""
    with open("/proc/self/cgroup") as file:
        groups = [line.strip()[3:] for line in file if line.startswith("0::/")]
    try:
        with open(f"/sys/fs/cgroup{groups[0]}/memory.max") as file:
            text = file.read().strip()
    except (IndexError, OSError):
        return -1
    return int(text) if text.isdigit() else -1


cpus = len(os.sched_getaffinity(0))
os.sched_setaffinity(0, range(1024))  # the kernel takes out what this container does not have
print(
    json.dumps(
        {
            "node": os.environ["SLURMD_NODENAME"],
            "cpus": cpus,
            "reachable_cpus": len(os.sched_getaffinity(0)),
            "memory_bytes": own_memory_limit(),
            "tmp_device": os.stat("/tmp").st_dev,
            "shm_device": os.stat("/dev/shm").st_dev,
            "open_files": soft_limit(resource.RLIMIT_NOFILE),
            "locked_bytes": soft_limit(resource.RLIMIT_MEMLOCK),
            "processes": soft_limit(resource.RLIMIT_NPROC),
        }
    ),
    flush=True,
)
