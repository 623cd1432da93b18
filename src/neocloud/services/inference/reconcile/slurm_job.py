"""A replica as a batch job of a Slurm cluster: its script, name, ports and resources. Pure.

Text from tenants is only ever an argument of the script, never part of it.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from neocloud.messages.neocloud.inference.v1 import SlurmResources
from neocloud.services.inference.model_server_key import ENTRY_POINTS, MODULE
from neocloud.services.inference.render import KEY_MODULE_SOURCE
from neocloud.services.slurm.types import MODELS_FEATURE, BatchJob, NewJob

FIRST_PORT, PORTS_OF_A_DEPLOYMENT = 20_000, 64
BLOCKS = (32_768 - FIRST_PORT) // PORTS_OF_A_DEPLOYMENT
"""Ports from 32,768 on are the kernel's own, for connections that go out."""

REPLICA_PREFIX = "replica-"
OUTPUT = "/root/%x-%j.log"
"""Slurm opens it as root and follows links. Others know the name beforehand, but cannot write to this folder,
whatever the cluster's root allows in /home/shared."""

# A job that runs is replaced when its script changes: the text below, comments included, stays as it is.
SCRIPT = (
    r"""#!/bin/bash
# Runs an engine until it is told to end, and ends it when it falls silent: its replica is then started anew.
# $1 names the file with the engine's key, $2 is its port; the rest is its command line.
key_file=$1 port=$2
shift 2
VLLM_API_KEY=$(<"$key_file") || exit 1
export VLLM_API_KEY
modules=$(mktemp -d) || exit 1
cat >"$modules/@MODULE@.py" <<'END_OF_MODULE' || exit 1
@SOURCE@
END_OF_MODULE
mkdir "$modules/neocloud-0.dist-info" || exit 1
cat >"$modules/neocloud-0.dist-info/entry_points.txt" <<'END_OF_PLUGIN' || exit 1
@PLUGIN@
END_OF_PLUGIN
export PYTHONPATH=$modules
"$@" &
engine=$!
trap 'kill -TERM "$engine"' TERM INT

is_well() (
    exec 3<>"/dev/tcp/127.0.0.1/$port"
    printf 'GET /health HTTP/1.0\r\n\r\n' >&3
    read -r -t 10 answer <&3
    [[ $answer == *" 200"* ]]
)

watch() { # a model may take long to load: only who has answered once can be hung
    local misses=0 has_answered=
    while sleep 10 &>/dev/null; do
        if is_well 2>/dev/null; then
            has_answered=1 misses=0
        elif [[ $has_answered ]] && ((++misses == 4)); then
            echo "the engine does not answer any more; it is ended"
            kill -KILL "$engine"
        fi
    done
}
watch &
watcher=$!
wait "$engine"
code=$?
while kill -0 "$engine" 2>/dev/null; do # a signal ended the wait, not the engine
    wait "$engine"
    code=$?
done
kill "$watcher"
rm -r "$modules"
exit "$code"
""".replace("@MODULE@", MODULE)
    .replace("@PLUGIN@", ENTRY_POINTS.rstrip("\n"))
    .replace("@SOURCE@", KEY_MODULE_SOURCE.rstrip("\n"))
)


FROM_MEMORY = r"""
# Copies a model to a folder in memory, where later engines of the worker find it, and runs the engine from
# there. $1 is the model, $2 the folder in memory, $3 names the copy; the rest is the engine's command line.
# Each engine holds a shared lock on its copy; copies that nobody uses make room. Without room the model
# is read where it is.
source=$1 memory=$2 copy=$2/.neocloud-models/$3 name=$3
shift 3
is_own() { [[ ! -L $1 && -d $1 && -O $1 && $(stat -c %a "$1") == 700 ]]; }
copy_in() {
    local folder=$memory/.neocloud-models other
    mkdir -m 700 "$folder" 2>/dev/null || is_own "$folder" || return 1
    exec 9>"$folder/lock" && flock 9 || return 1
    rm -rf "$folder"/new.*
    exec 8>"$copy.lock" && flock -s 8 || return 1
    [[ -d $copy ]] && return 0
    for other in "$folder"/*.lock; do
        [[ $other == "$copy.lock" ]] || flock -n "$other" rm -rf "${other%.lock}" "$other"
    done
    cp -rL "$source" "$folder/new.$name" && mv "$folder/new.$name" "$copy" && return 0
    rm -rf "$folder/new.$name"
    return 1
}
started=$SECONDS
if copy_in; then
    echo "the weights are in memory, $copy ($((SECONDS - started)) s)"
    words=()
    for word in "$@"; do [[ $word == "$source" ]] && word=$copy; words+=("$word"); done
    set -- "${words[@]}"
else
    echo "the weights cannot be copied to $memory; they are read from $source"
fi
exec 9>&-
exec "$@"
"""


def from_memory(model: str, memory: str, digest: str, command: Sequence[str]) -> tuple[str, ...]:
    """Return the command of an engine that reads its model from a folder in memory."""
    return ("bash", "-c", FROM_MEMORY, "from-memory", model, memory, digest[:32], *command)


@dataclass(frozen=True)
class ReplicaJob:
    """A job as one of a deployment's replicas."""

    replica: str
    job: BatchJob


def port_of(block: str, replica: str) -> int:
    """Return the port of a replica. No two replicas of a cluster share one, so a node can run any number."""
    number = int(replica.removeprefix(REPLICA_PREFIX))
    return FIRST_PORT + int(block) * PORTS_OF_A_DEPLOYMENT + number


def new_job(
    deployment_id: str,
    replica: str,
    arguments: Sequence[str],
    resources: SlurmResources,
    environment: Mapping[str, str],
) -> NewJob:
    """Return the job that runs a replica; `arguments` are those of the script.

    Its name ends in a digest of the job, so it changes with any part of it.
    """
    options = (*_options(resources), f"--constraint={MODELS_FEATURE}", "--requeue", "--open-mode=append")
    content = json.dumps([SCRIPT, arguments, options, environment], sort_keys=True)
    revision = hashlib.sha256(content.encode()).hexdigest()[:12]
    return NewJob(
        name=f"{deployment_id}.{replica}.{revision}",
        script=SCRIPT,
        options=(*options, f"--output={OUTPUT}"),
        arguments=arguments,
        environment=environment,
    )


def replica_job(deployment_id: str, job: BatchJob) -> ReplicaJob | None:
    """Return the job as the replica of this deployment that its name says; None if it says another. Any user
    may choose a name, so this is for jobs of root that an earlier release submitted."""
    owner, _, rest = job.name.partition(".")
    replica = rest.partition(".")[0]
    number = replica.removeprefix(REPLICA_PREFIX)
    is_ours = owner == deployment_id and number != replica and number.isdigit()
    return ReplicaJob(replica, job) if is_ours else None


def _options(resources: SlurmResources) -> list[str]:
    options = ["--nodes=1", "--ntasks=1"]
    if resources.partition:
        options.append(f"--partition={resources.partition}")
    if resources.cpus:
        options.append(f"--cpus-per-task={resources.cpus}")
    if resources.memory_gibibytes:
        options.append(f"--mem={resources.memory_gibibytes}G")
    if resources.gpus:
        options.append(f"--gres=gpu:{resources.gpus}")
    if resources.worker:
        options.append(f"--nodelist={resources.worker}")
    return options
