#!/usr/bin/env bash
# Adapt a language model to the questions of a bank's customers: cluster, checks, jobs, evaluation, bill.
#   bash runs/bank.sh                   SmolLM2 on a small generated data set
#   MODEL=tiny bash runs/bank.sh        a network of a million weights, trained first on the same sentences
#   DATA=conversations.json bash runs/bank.sh     with your own (JSON, JSONL, CSV or Parquet)
# Every line below is a command you can type yourself. A second run uses the results of the first.
set -euo pipefail
cd "$(dirname "$0")/.."
MODEL=${MODEL:-smollm2}
OUT=${OUT:-out/bank}
KEY=out/bank-key # the cluster accepts it; other results may be elsewhere
CODE=/home/shared/finetune_code
folder_of() { neo model get "$1" --output json | python3 -c 'import json, sys; print(json.load(sys.stdin)["spec"]["source"]["folder"])'; }
say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
mkdir -p out "$OUT"

say "1. A cloud on this machine"
neo up
neo status

say "2. A Slurm cluster: controller, accounting, a login node and two workers"
[ -f "$KEY" ] || ssh-keygen -q -t ed25519 -N '' -C innovation-bank -f "$KEY"
neo slurm cluster create bank --workers 2 --ssh-key "$KEY.pub" --reuse

say "3. Check every node"
neo slurm cluster check bank

say "4. Get the base model, and copy files with scp"
neo slurm cluster ssh-config bank --identity "$KEY" > "$OUT/ssh_config"
on_login() { ssh -F "$OUT/ssh_config" bank "$@"; }
on_login mkdir -p "$CODE/data" /home/shared/models
scp -q -F "$OUT/ssh_config" -r recipes/* "bank:$CODE/"
name=$(basename "${DATA:-bank.csv}" | sed 's/\.[^.]*$//') # the name of the data, so that other data make another model
RESULTS=$CODE/results/$name-$MODEL
SETTINGS="OUT=$RESULTS"
if [ "$MODEL" != tiny ]; then
  neo model get "$MODEL" > /dev/null 2>&1 || neo model add "$MODEL"
  on_login test -e "/home/shared/models/$MODEL/config.json" ||
    scp -q -F "$OUT/ssh_config" -r "$(folder_of "$MODEL")" "bank:/home/shared/models/$MODEL"
  SETTINGS="$SETTINGS MODEL=/home/shared/models/$MODEL CONFIG=$CODE/config_$MODEL.json CONTEXT=192" # short rows: more steps
fi
if [ -n "${DATA:-}" ]; then
  scp -q -F "$OUT/ssh_config" "$DATA" "bank:$CODE/data/"
  SETTINGS="$SETTINGS DATA='$CODE/data/$(basename "$DATA")'"
fi

say "5. Prepare, fine-tune on both workers, evaluate: three batch jobs, each waiting for the one before"
submit() { on_login "cd $CODE && $SETTINGS sbatch --parsable $*"; }
prepare=$(submit prepare.sbatch)
train=$(submit --dependency="afterok:$prepare" finetune_distributed.sbatch)
evaluate=$(SETTINGS="$SETTINGS EVALUATE_FLAGS='--samples 24 --max-new-tokens 40'" submit --dependency="afterok:$train" evaluate.sbatch)
on_login squeue
neo slurm job logs bank "$prepare" --follow
neo slurm job logs bank "$train" --follow
neo slurm job logs bank "$evaluate" --follow > "$OUT/report.json"
on_login sacct --allocations --format=JobID,JobName,NNodes,Elapsed,State
on_login python3 "$CODE/report_table.py" "$RESULTS/report.json"

say "6. Serve base and fine-tuned model with one engine, and set their price"
TUNED=$(printf %s "$name" | tr '[:upper:]' '[:lower:]' | tr -cs 'a-z0-9' -)
BASE=$MODEL
scp -q -F "$OUT/ssh_config" -r "bank:$RESULTS/finetune/adapter" "$OUT/"
if [ "$MODEL" = tiny ]; then
  BASE=$TUNED-base
  scp -q -F "$OUT/ssh_config" -r "bank:$RESULTS/base_model" "$OUT/"
  neo model get "$BASE" > /dev/null 2>&1 || neo model add "$BASE" "$OUT/base_model"
fi
neo model get "$TUNED" > /dev/null 2>&1 || neo model add "$TUNED" "$OUT/adapter" --base "$BASE"
neo deployment get "$BASE" > /dev/null 2>&1 ||
  neo deploy "$BASE" --platform cpu-local --max-adapters 2 --price 0 # free while it is measured
# Price of a token: what the replica's machine costs an hour, divided by the tokens that it writes in one.
neo tco --measure "$BASE" --output json > "$OUT/speed.json"
neo deployment get "$BASE" --output json > "$OUT/deployment.json"
neo billing report --output json > "$OUT/bill.json"
neo deployment price "$BASE" "$(python3 runs/token_price.py "$OUT"/{speed,deployment,bill}.json)"

say "7. Ask both what only the fine-tuned model knows, and show the cost"
# Questions of the test split that the evaluation found to be answered right after fine-tuning, and wrong before it.
answered=0
python3 runs/show_answers.py "$OUT/report.json" --base "$BASE" --tuned "$TUNED" || answered=$?
neo billing usage
neo billing report
cat <<END

Adapter          $OUT/adapter
Report           $OUT/report.json
Another way      neo tune DATA --base $BASE --serve      (all of the above in one command)
Sign in          ssh -F $OUT/ssh_config bank
Stop             neo down        (neo up brings everything back)
Remove all       neo destroy

END
neo chat "$TUNED" --compare "$BASE" # a link to a page where both answer side by side
exit "$answered"
