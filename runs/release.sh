#!/usr/bin/env bash
# From data to a release: dry run, tuning, a gate that refuses, better data, a release by shares, lineage, bill.
#   bash runs/release.sh          as root, from a checkout, after `make setup`; uses the cloud that runs here, or starts one
set -euo pipefail
cd "$(dirname "$0")/.."
OUT=${OUT:-out/release}
say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
field() { python3 -c 'import json, sys; print(json.load(sys.stdin)[sys.argv[1]][sys.argv[2]])' "$@"; }
id_of() { neo model get "$1" --output json | field metadata id; }
mkdir -p "$OUT"

say "1. A cloud and a base model"
neo up
neo model get smollm2 > /dev/null 2>&1 || neo model add smollm2

say "2. Data: a few conversations of a bank, more of them, and questions in other words to decide by"
python3 recipes/make_dataset.py --topics 12 --conversations 12 --output "$OUT/few.csv" --test "$OUT/test.csv"
python3 recipes/make_dataset.py --topics 12 --conversations 144 --output "$OUT/more.csv"
neo tune "$OUT/few.csv" --base smollm2 --validation "$OUT/test.csv" --dry-run

say "3. The gate: half the perplexity, answers like the bank's, none too long"
cat > "$OUT/gate.json" <<'END'
{"rules": [
  {"rule": "better", "metric": "perplexity", "percent": 50, "confidence": 95},
  {"rule": "at_least", "metric": "rougeL", "value": 0.2},
  {"rule": "at_most", "metric": "longest_message", "value": 400}
]}
END

echo '{"hyperparameters": {"n_epochs": 2, "learning_rate": 0.001}}' > "$OUT/settings.json"

say "4. Tune on the few: the gate refuses, and the model is kept"
code=0
neo tune "$OUT/few.csv" --base smollm2 --suffix few --config "$OUT/settings.json" --validation "$OUT/test.csv" \
  --gate "$OUT/gate.json" || code=$?
[ "$code" = 8 ] || { echo "The gate was to refuse this model (exit code 8), but the exit code is $code." >&2; exit 1; }

say "5. Tune on more: the gate passes, and the model is served beside its base"
neo tune "$OUT/more.csv" --base smollm2 --suffix more --config "$OUT/settings.json" --validation "$OUT/test.csv" \
  --gate "$OUT/gate.json" --serve --output json > "$OUT/job.json"
tuned=$(field status fine_tuned_model < "$OUT/job.json")

say "6. Release it for 20 of 100 requests to smollm2, look, and promote it"
neo inference release create bank --model-id "$(id_of smollm2)" --candidate-model-id "$(id_of "$tuned")" --share-percent 20
for _ in 1 2 3 4 5 6 7 8 9 10; do neo chat smollm2 --once "What does an overdraft cost me?" --max-tokens 60; done
neo inference release list
neo inference release promote bank
neo chat smollm2 --once "What does an overdraft cost me?"

say "7. Where it comes from, and what it cost"
neo model lineage "$tuned"
neo billing report
