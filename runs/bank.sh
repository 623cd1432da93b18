#!/usr/bin/env bash
# InnovationBank adapts a language model to its customers' questions: cluster, checks, jobs, evaluation, bill.
#   bash runs/bank.sh                   on a small data set made on the spot
#   DATA=conversations.json bash runs/bank.sh     on your own (JSON, JSONL, CSV or Parquet)
# Every line below is a command you can type yourself. Run it again and it uses what is there.
set -euo pipefail
cd "$(dirname "$0")/.."
OUT=${OUT:-out/bank}
KEY=out/bank-key # the cluster knows it; other results may go elsewhere
CODE=/home/shared/finetune_code
say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
mkdir -p out "$OUT"

say "1. A cloud on this machine"
neo up
neo status

say "2. A Slurm cluster: controller, accounting, a login node and two workers"
[ -f "$KEY" ] || ssh-keygen -q -t ed25519 -N '' -C innovation-bank -f "$KEY"
neo slurm cluster create bank --workers 2 --preset 1vcpu-4gb --ssh-key "$KEY.pub" --reuse

say "3. Is every node what it should be?"
neo slurm cluster check bank

say "4. Files go in with scp"
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

say "6. What it cost"
neo billing usage
neo billing report

say "Base model against fine-tuned model"
RESULTS=$CODE/results/$(basename "${DATA:-bank.csv}" | sed 's/\.[^.]*$//')
scp -q -F "$OUT/ssh_config" -r "bank:$RESULTS/finetune/adapter" "$OUT/"
on_login python3 "$CODE/report_table.py" "$RESULTS/report.json"
cat <<END

Adapter          $OUT/adapter
Report           $OUT/report.json
Sign in          ssh -F $OUT/ssh_config bank
Another job      neo slurm job submit bank recipes/evaluate.sbatch
Stop             neo down        (neo up brings everything back)
Remove all       neo destroy
END
