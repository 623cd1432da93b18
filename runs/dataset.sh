#!/usr/bin/env bash
# Data in, model out: a bucket, a fine-tuning job that reads it, the model pushed to a registry and served from it, the bill.
#   bash runs/dataset.sh                          after runs/bank.sh, whose small base model it takes
#   BASE=qwen MODEL=Qwen/Qwen3-0.6B bash runs/dataset.sh      with another: a folder, or an id of the hub
# Every line below is a command you can type yourself. WAIT=1 waits for the bill: an hour is billed once it is over.
set -euo pipefail
cd "$(dirname "$0")/.."
OUT=${OUT:-out/dataset}
BUCKET=${BUCKET:-bank-data} # names are unique in the cloud
REGISTRY=${REGISTRY:-models}
BASE=${BASE:-bank-base}
say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
mkdir -p "$OUT"

say "1. A cloud on this machine, with a base model"
neo up
neo model get "$BASE" > /dev/null 2>&1 ||
  neo model add "$BASE" "${MODEL:?has to name a folder or a hub id, or let runs/bank.sh make a model first}"

say "2. A bucket, and a key for programs that speak S3"
neo storage bucket get "$BUCKET" > /dev/null 2>&1 || neo storage bucket create "$BUCKET"
ACCOUNT=uploader-$(date +%s)
neo iam service-account create "$ACCOUNT"
neo iam group-membership create --parent-id editors --member-id "$ACCOUNT"
KEY=$(neo iam access-key create --account-service-account-id "$ACCOUNT" --secret-delivery-mode EXPLICIT -o json | jq -r .metadata.id)
trap 'neo iam service-account delete "$ACCOUNT" --yes' EXIT # and its key

say "3. Upload a data set: conversations, one on each line"
python3 recipes/make_dataset.py --output "$OUT/bank.csv"
python3 recipes/dataset_convert.py "$OUT/bank.csv" --output "$OUT/bank.jsonl"
if command -v aws > /dev/null; then
  AWS_ENDPOINT_URL=http://$(neo status -o json | jq -r .s3) \
    AWS_ACCESS_KEY_ID=$(neo iam access-key get-secret "$KEY" -o json | jq -r .aws_access_key_id) \
    AWS_SECRET_ACCESS_KEY=$(neo iam access-key get-secret "$KEY" -o json | jq -r .secret) \
    aws s3 cp "$OUT/bank.jsonl" "s3://$BUCKET/chats/bank.jsonl"
else
  neo storage cp "$OUT/bank.jsonl" "s3://$BUCKET/chats/bank.jsonl"
fi

say "4. Fine-tune on the object: the job reads it with the rights of the caller who starts it"
neo tune "s3://$BUCKET/chats/bank.jsonl" --base "$BASE" --suffix bank --epochs "${EPOCHS:-0}" --output json > "$OUT/job.json"
TUNED=$(jq -r .status.fine_tuned_model "$OUT/job.json")
jq .status.evaluation "$OUT/job.json"

say "5. Push the model as an artifact to a registry, and serve it from there"
neo registry registry get "$REGISTRY" > /dev/null 2>&1 || neo registry registry create "$REGISTRY"
neo model push "$TUNED" "$REGISTRY/bank:${TUNED##*-}"
neo model add "$TUNED-pushed" "$REGISTRY/bank:${TUNED##*-}" --base "$BASE"
neo deployment get "$BASE" > /dev/null 2>&1 || neo deploy "$BASE" --max-adapters 4
neo chat "$TUNED-pushed" --once "${QUESTION:-How do I block a stolen card?}" --temperature 0 --max-tokens 60

say "6. The bill: what bucket and registry store, their requests and the bytes that they sent"
[ -z "${WAIT:-}" ] || until neo billing report | grep object-storage.egress > /dev/null; do sleep 60; done
neo billing report
neo storage ls "s3://$BUCKET/" --recursive
neo registry artifact list --parent-id "$REGISTRY"
