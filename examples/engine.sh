#!/bin/sh
# A remote engine in 30 lines of shell, over HTTP. Needs curl and jq.
#   TENURE_TOKEN=tnr_... examples/engine.sh http://127.0.0.1:8080
url=${1:-http://127.0.0.1:8080}
session=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n') # The leases are derived from it: keep it secret.
who="\"engine_id\":\"${ENGINE_ID:-engine-sh}\",\"session\":\"$session\""
claim=1 id=0

post() { # post PATH JSON: retries until the gateway replies
  printf '%s' "$2" | curl --silent --show-error --fail --retry 10 --retry-connrefused --max-time 60 \
    -H "Authorization: Bearer $TENURE_TOKEN" -H 'Content-Type: application/json' --data-binary @- "$url/engine/$1"
}
report() { # report TYPE FIELDS: about the current job
  id=$((id + 1))
  post report "{$who,\"type\":\"$1\",\"id\":$id,\"job_id\":\"$job_id\",\"claim\":$claim$2}" >/dev/null
}

while :; do
  jobs=$(post claim "{$who,\"kinds\":[\"render\"],\"claim\":$claim,\"wait_seconds\":20}") || { sleep 1; continue; }
  [ "$(printf '%s' "$jobs" | jq '.jobs | length')" = 0 ] && continue
  job_id=$(printf '%s' "$jobs" | jq -r '.jobs[0].job_id')
  scene=$(printf '%s' "$jobs" | jq -r '.jobs[0].payload.scene')
  report job_started
  # A job that takes longer than its heartbeat interval renews its lease meanwhile: post renew.
  if [ -n "$scene" ]; then
    report job_complete ",\"result\":$(printf '%s.png' "$scene" | jq -Rs .)"
  else
    report job_failed ',"action":"fail","error":{"type":"BadAsset","message":"the scene has no name"}'
  fi
  claim=$((claim + 1))
done
