#!/usr/bin/env bash
# A person with curl: says something, streams it, comes back to it, is refused in words.
# Usage: curl.sh URL KEY. Ends with 0 and `ok: …` for each promise, or with the failed one.
set -euo pipefail
url=$1 key=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

call() { curl -sS --max-time 30 -H "Authorization: Bearer $key" "$@"; }
ok() { echo "ok: $*"; }
fail() {
    echo "failed: $*" >&2
    exit 1
}
contains() { [[ $1 == *"$2"* ]] || fail "$3: no '$2' in: $1"; }

answer=$(call -H 'Content-Type: application/json' -d '{"content":"Say something."}' "$url/v1/conversations/curl-1/messages")
contains "$answer" '"stop_reason":"end_turn"' "a prompt is answered"
ok "a prompt is answered in one response"

call -N -H 'Content-Type: application/json' -H 'Accept: text/event-stream' -d '{"content":"Again."}' \
    "$url/v1/conversations/curl-1/messages" >"$work/events"
stream=$(<"$work/events")
contains "$stream" 'event: text_delta' "the answer streams"
contains "$stream" 'event: round_finished' "the stream ends with its round"
ok "a prompt streams $(grep -c '^id: ' "$work/events") events"

# Back with the id of some event in the middle: what came after it, and nothing before.
round=$(grep -o '"round_id":"[^"]*"' "$work/events" | head -1 | cut -d'"' -f4)
total=$(grep -c '^id: ' "$work/events")
middle=$(grep '^id: ' "$work/events" | sed -n "$((total / 2))p" | cut -d' ' -f2 | tr -d '\r')
call -N -H "Last-Event-ID: $middle" "$url/v1/conversations/curl-1/events?round=$round" >"$work/rest"
expected=$(grep '^id: ' "$work/events" | sed -n "$((total / 2 + 1)),\$p")
[[ $(grep '^id: ' "$work/rest") == "$expected" ]] || fail "a resumed stream differs: $(diff <(echo "$expected") <(grep '^id: ' "$work/rest") | head -5)"
ok "a stream is resumed after event $middle"

for n in 1 2; do
    call -D "$work/headers$n" -H 'Content-Type: application/json' -H 'Idempotency-Key: k-1' -d '{"content":"Once."}' \
        "$url/v1/conversations/curl-1/messages" >"$work/answer$n"
done
grep -qi '^idempotency-replayed: true' "$work/headers2" || fail "the second one is no replay: $(<"$work/headers2")"
[[ $(grep -o '"round_id":"[^"]*"' "$work/answer1") == $(grep -o '"round_id":"[^"]*"' "$work/answer2") ]] || fail "two rounds for one key"
status=$(call -o "$work/other" -w '%{http_code}' -H 'Content-Type: application/json' -H 'Idempotency-Key: k-1' -d '{"content":"Other."}' \
    "$url/v1/conversations/curl-1/messages")
[[ $status == 422 ]] || fail "another body under the same key: $status $(<"$work/other")"
ok "a repeated request is done once"

status=$(call -o "$work/problem" -D "$work/headers" -w '%{http_code}' "$url/v1/conversations/nobody-knows-it")
[[ $status == 404 ]] && grep -qi 'application/problem+json' "$work/headers" || fail "an unknown conversation: $status $(<"$work/problem")"
status=$(curl -sS -o "$work/problem" -w '%{http_code}' "$url/v1/conversations")
[[ $status == 401 ]] || fail "no key: $status"
status=$(call -o "$work/problem" -w '%{http_code}' -H 'Content-Type: application/json' -d '{"contents":1}' "$url/v1/conversations/curl-1/messages")
[[ $status == 422 ]] || fail "a wrong field: $status $(<"$work/problem")"
contains "$(<"$work/problem")" '"pointer"' "the wrong field is pointed at"
ok "refusals are problems with a status and words"

contains "$(call "$url/v1/conversations")" 'curl-1' "conversations are listed"
contains "$(call "$url/v1/conversations/curl-1/messages")" 'Say something.' "the history is returned"
status=$(call -o /dev/null -w '%{http_code}' -X DELETE "$url/v1/conversations/curl-1")
[[ $status == 20? ]] || fail "deleting: $status"
status=$(call -o /dev/null -w '%{http_code}' "$url/v1/conversations/curl-1")
[[ $status == 404 ]] || fail "still there after deleting: $status"
ok "a conversation is listed, read and erased"
