#!/usr/bin/env bash
# A claim under a token, and the refusal of a stale one, with curl alone: what any language has to send.
# DLOCK_LOCK_SERVER and DLOCK_EXECUTOR_PAYMENTS name the servers; those of `dlock up` where nothing is said.
set -euo pipefail
LOCK=${DLOCK_LOCK_SERVER:-http://127.0.0.1:7400}
PAY=${DLOCK_EXECUTOR_PAYMENTS:-http://127.0.0.1:7401}
RUN=$(date +%s)-$$
ACCOUNT=curl-$RUN
PAYOUT=CURL-$RUN

body=$(mktemp)
trap 'rm -f "$body"' EXIT

# ask STATUS METHOD URL [curl's options]: sends a request, and stops where the answer has another status.
ask() {
  local wanted=$1 method=$2 url=$3 status
  shift 3
  status=$(curl --silent --show-error --max-time 20 --output "$body" --write-out '%{http_code}' --request "$method" "$url" \
    --header 'content-type: application/json' "$@")
  if [ "$status" != "$wanted" ]; then
    echo "$method $url answered $status, not $wanted: $(cat "$body")" >&2
    exit 1
  fi
}
# A member of the last answer that is a text or a number.
field() { sed -E "s/.*\"$1\":\"?([^\",}]+).*/\1/" "$body"; }

echo "1. a session for each of two workers: a life sign, whose end frees whatever it holds"
ask 201 POST "$LOCK/v1/sessions" --data '{"owner":"W1","ttl_ms":15000}'
W1=$(field session_id)
ask 201 POST "$LOCK/v1/sessions" --data '{"owner":"W2","ttl_ms":15000}'
W2=$(field session_id)

# A key is one segment of the path, so its colon and slashes are encoded.
KEY=payout%3A$ACCOUNT
echo "2. W1 takes the key: a lease and a token"
ask 200 POST "$LOCK/v1/locks/$KEY/acquire" --data "{\"session_id\":\"$W1\"}"
OLD=$(field token)

echo "3. W2 asks for the same key, and is told who has it"
ask 409 POST "$LOCK/v1/locks/$KEY/acquire" --data "{\"session_id\":\"$W2\"}"
echo "   $(field code)"

echo "4. W1 is killed: its session ends, W2 gets the key under a higher token"
ask 200 DELETE "$LOCK/v1/sessions/$W1"
ask 200 POST "$LOCK/v1/locks/$KEY/acquire" --data "{\"session_id\":\"$W2\",\"wait_ms\":5000}"
NEW=$(field token)
[ "$NEW" -gt "$OLD" ]

echo "5. a payout, claimed under W2's token: the ledger keeps that token as the account's mark"
ask 201 POST "$PAY/v1/accounts" --data "{\"account_id\":\"$ACCOUNT\",\"currency\":\"EUR\",\"opening_balance_minor\":10000}"
CREDITOR='{"name":"Ada","account":"DE02"}'
ask 201 POST "$PAY/v1/payouts" --header "X-Idempotency-Key: $PAYOUT" \
  --data "{\"payout_id\":\"$PAYOUT\",\"account_id\":\"$ACCOUNT\",\"amount_minor\":1000,\"currency\":\"EUR\",\"creditor\":$CREDITOR}"
ask 200 POST "$PAY/v1/payouts/$PAYOUT/claim" --header "X-Fencing-Token: $NEW" --data '{}'
echo "   $(field state)"

echo "6. W1's last request arrives late, with the old token: refused, nothing is written"
ask 409 POST "$PAY/v1/payouts/$PAYOUT/claim" --header "X-Fencing-Token: $OLD" --data '{}'
echo "   $(field code): $(field reason)"

echo "7. no token, no write"
ask 400 POST "$PAY/v1/payouts/$PAYOUT/claim" --data '{}'
echo "   $(field code)"

echo "8. W2 gives the key back, with its session and its token"
ask 200 DELETE "$LOCK/v1/locks/$KEY?session_id=$W2" --header "X-Fencing-Token: $NEW"
ask 200 DELETE "$LOCK/v1/sessions/$W2"
echo "done"
