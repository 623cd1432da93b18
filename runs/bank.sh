#!/usr/bin/env bash
# Adapt a language model to the questions of a bank's customers: cluster, checks, jobs, evaluation, bill.
#   bash runs/bank.sh                   with a small generated data set
#   DATA=conversations.json bash runs/bank.sh     with your own (JSON, JSONL, CSV or Parquet)
# Every line below is a command you can type yourself. A second run uses the results of the first.
set -euo pipefail
cd "$(dirname "$0")/.."
OUT=${OUT:-out/bank}
KEY=out/bank-key # the cluster accepts it; other results may be elsewhere
CODE=/home/shared/finetune_code
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

say "4. Copy files with scp"
neo slurm cluster ssh-config bank --identity "$KEY" > "$OUT/ssh_config"
on_login() { ssh -F "$OUT/ssh_config" bank "$@"; }
on_login mkdir -p "$CODE/data"
scp -q -F "$OUT/ssh_config" -r recipes/* "bank:$CODE/"
if [ -n "${DATA:-}" ]; then
  scp -q -F "$OUT/ssh_config" "$DATA" "bank:$CODE/data/"
  DATA_ON_CLUSTER=$CODE/data/$(basename "$DATA")
fi

say "5. Prepare, fine-tune on both workers, evaluate: three batch jobs, each waiting for the one before"
submit() { on_login "cd $CODE && DATA='${DATA_ON_CLUSTER:-}' sbatch --parsable $*"; }
prepare=$(submit prepare.sbatch)
train=$(submit --dependency="afterok:$prepare" finetune_distributed.sbatch)
evaluate=$(submit --dependency="afterok:$train" evaluate.sbatch)
on_login squeue
neo slurm job logs bank "$prepare" --follow
neo slurm job logs bank "$train" --follow
neo slurm job logs bank "$evaluate" --follow > "$OUT/report.json"
on_login sacct --allocations --format=JobID,JobName,NNodes,Elapsed,State

say "6. Serve base and fine-tuned model with one engine, set their price, and send both a question"
name=$(basename "${DATA:-bank.csv}" | sed 's/\.[^.]*$//') # the name of the data, so that other data make another model
RESULTS=$CODE/results/$name
MODEL=$(printf %s "$name" | tr '[:upper:]' '[:lower:]' | tr -cs 'a-z0-9' -)
scp -q -F "$OUT/ssh_config" -r "bank:$RESULTS/base_model" "bank:$RESULTS/finetune/adapter" "$OUT/"
neo model get "$MODEL-base" > /dev/null 2>&1 || neo model add "$MODEL-base" "$OUT/base_model"
neo model get "$MODEL" > /dev/null 2>&1 || neo model add "$MODEL" "$OUT/adapter" --base "$MODEL-base"
neo deployment get "$MODEL-base" > /dev/null 2>&1 ||
  neo deploy "$MODEL-base" --platform cpu-local --max-adapters 2 --price 0 # free while it is measured
# Price of a token: what the replica's machine costs an hour, divided by the tokens that it writes in one.
neo tco --measure "$MODEL-base" --output json > "$OUT/speed.json"
neo deployment get "$MODEL-base" --output json > "$OUT/deployment.json"
neo billing report --output json > "$OUT/bill.json"
neo deployment price "$MODEL-base" "$(python3 runs/token_price.py "$OUT"/{speed,deployment,bill}.json)"
# Of the test split, which neither model has seen: the evaluated question that the fine-tuned model answers best.
best() { on_login "jq -r '.details.finetuned_model.closest_answer$1 // empty' $RESULTS/report.json"; }
if [ -z "${QUESTION:-}" ] && [ -n "$(best)" ]; then
  QUESTION=$(best .input)
  echo "Of $(best .among) test questions, the answer to this one came closest to the real one (ROUGE-L). The means of all are in the table below."
fi
QUESTION=${QUESTION:-$(on_login "head -n 1 $RESULTS/chats_test.jsonl | jq -r 'first(.messages[] | select(.role == \"user\")).content'")}
echo "Question: $QUESTION"
for model in "$MODEL-base" "$MODEL"; do
  echo "--- $model"
  neo chat "$model" --once "$QUESTION" --temperature 0
done

say "7. Show the cost"
neo billing usage
neo billing report

say "Base model against fine-tuned model"
on_login python3 "$CODE/report_table.py" "$RESULTS/report.json"
cat <<END

Adapter          $OUT/adapter
Report           $OUT/report.json
Another way      neo tune DATA --base $MODEL-base --serve      (all of the above in one command)
Sign in          ssh -F $OUT/ssh_config bank
Stop             neo down        (neo up brings everything back)
Remove all       neo destroy

END
neo chat "$MODEL" --compare "$MODEL-base" # a link to a page where both answer side by side
