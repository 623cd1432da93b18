#!/usr/bin/env bash
# A worker breaks under a job: it is drained, a spare takes its place, the job runs again, the worker is verified, the bill corrected.
#   bash runs/node-failure.sh                 WORKERS=3 SPARES=1, in a cluster of its own, CLUSTER=spares
# Every line below is a command you can type yourself. Breaking the worker needs root on this machine: it kills its slurmd.
set -euo pipefail
cd "$(dirname "$0")/.."
CLUSTER=${CLUSTER:-spares} # also the name of its node set, so that its slurmd is found among those of others
WORKERS=${WORKERS:-3}
SPARES=${SPARES:-1}
say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
KEY=out/node-failure/id_ed25519
on() { neo slurm cluster ssh "$CLUSTER" --identity "$KEY" -- "$@"; }
nodes() { neo fleet node list -o json | jq -r --arg c "$CLUSTER" ".[] | select(.cluster_name == \$c) | $1"; }
until_it_says() { # WORD COMMAND...
  local word=$1
  shift
  until [ "$("$@" 2> /dev/null)" = "$word" ]; do sleep 1; done
}
in_service() { nodes 'select(.is_schedulable) | .name' | wc -l; }
runs() { on "grep -c ^run /home/shared/run-$JOB.out"; }
is_spare() { nodes "select(.name == \"$BROKEN\") | .is_spare"; }

say "1. A cloud, and a cluster with a spare worker"
neo up
mkdir -p "${KEY%/*}" && { [ -f "$KEY" ] || ssh-keygen -q -t ed25519 -N '' -f "$KEY"; }
neo slurm cluster get "$CLUSTER" > /dev/null 2>&1 || neo slurm cluster create "$CLUSTER" --node-set "$CLUSTER" \
  --ssh-key "$KEY.pub" --workers "$WORKERS" --preset "${PRESET:-1vcpu-4gb}" --auto-repair --spares "$SPARES"
until_it_says "$((WORKERS - SPARES))" in_service
neo fleet node list

say "2. A job on all workers but the spare"
JOB=$(on "cd /home/shared && sbatch --parsable --requeue --open-mode=append --nodes=$((WORKERS - SPARES)) -o run-%j.out" << 'END'
#!/bin/bash
echo "run ${SLURM_RESTART_COUNT:-0} on $SLURM_JOB_NODELIST"
sleep 600
END
)
until_it_says 1 runs
on cat "/home/shared/run-$JOB.out"

say "3. The slurmd of one of them is killed"
BROKEN=$(on squeue -h -j "$JOB" -o %B)
BEGAN=$(date +%s)
kill -9 "$(pgrep -f "^/usr/sbin/slurmd -D -Z -N $BROKEN ")"

say "4. Detected, drained, replaced: the job runs again, with the spare"
until_it_says 2 runs
echo "The job runs again $(($(date +%s) - BEGAN)) s after $BROKEN broke."
on cat "/home/shared/run-$JOB.out"

say "5. $BROKEN has passed its checks and is the spare now: why it was drained, and how long each step took"
until_it_says true is_spare
neo fleet node list
neo fleet node get "$CLUSTER/$BROKEN"
on scancel "$JOB"

say "6. The bill: neither the spare nor $BROKEN is charged while it was out of service"
neo billing credits
neo billing report
