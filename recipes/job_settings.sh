# Where the three jobs find code, data, model and results. Sourced by prepare.sbatch,
# finetune_distributed.sbatch and evaluate.sbatch; every variable can be set before `sbatch`.
#
#   DATA    Parquet, CSV, JSON or JSONL file; unset: a small data set is written first
#   TEST_DATA  such a file to evaluate on; unset: a tenth of DATA
#   MODEL   local folder or hub id such as Qwen/Qwen3-8B; unset: a tiny one is trained first
#   OUT     folder for everything the jobs write; unset: one per data file, below CODE
#   CONFIG  JSON configuration of finetune.py
#   CONTEXT tokens per training row
CODE=${CODE:-/home/shared/finetune_code}
NAME=$(basename "${DATA:-bank.csv}")
NAME=${NAME%.*}
OUT=${OUT:-$CODE/results/$NAME}
MODEL=${MODEL:-$OUT/base_model}
CONFIG=${CONFIG:-$CODE/config_tiny.json}
CONTEXT=${CONTEXT:-256}
export TOKENIZERS_PARALLELISM=false PYTHONUNBUFFERED=1
cd "$CODE"
mkdir -p "$OUT"
