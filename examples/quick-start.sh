#!/bin/sh
# The protocol over curl, step by step. Needs a lock server: dlock lock-server --listen 127.0.0.1:7400
set -eu

server=${DLOCK_LOCK_SERVER:-http://127.0.0.1:7400}
key=${1:-quick-start}

call() { # call METHOD PATH [curl's further arguments]
    method=$1 path=$2
    shift 2
    curl --silent --show-error --fail-with-body --request "$method" "$server$path" \
        --header 'content-type: application/json' "$@"
}
field() { # field NAME: a string or number of the JSON on standard input
    sed -n "s/.*\"$1\":\"\{0,1\}\([^\",}]*\).*/\1/p"
}

# 1. A session says who you are and lives by its heartbeats.
session=$(call POST /v1/sessions --data '{"owner": "quick-start", "ttl_ms": 15000}' | field session_id)
echo "session $session"

# 2. Acquire: the answer carries the fencing token. Hand it to whatever you protect, with every write.
token=$(call POST "/v1/locks/$key/acquire" --data "{\"session_id\": \"$session\"}" | field token)
echo "held under token $token"

# 3. Anybody else is refused, and told by whom: 409 HELD_BY_OTHER.
other=$(call POST /v1/sessions --data '{"owner": "somebody-else"}' | field session_id)
if refusal=$(call POST "/v1/locks/$key/acquire" --data "{\"session_id\": \"$other\"}"); then
    echo "both have it: this cannot be" >&2
    exit 1
fi
echo "somebody else is answered $(echo "$refusal" | field code)"

# 4. The lease ends by itself unless it is renewed, the session unless it sends heartbeats.
call POST "/v1/locks/$key/renew" --header "X-Fencing-Token: $token" --data "{\"session_id\": \"$session\"}" >/dev/null
call POST "/v1/sessions/$session/heartbeat" --data '{}' >/dev/null
echo "renewed"

# 5. Give it back. The next one gets a higher token, always.
call DELETE "/v1/locks/$key?session_id=$session" --header "X-Fencing-Token: $token" >/dev/null
next=$(call POST "/v1/locks/$key/acquire" --data "{\"session_id\": \"$other\"}" | field token)
echo "given back; the next one holds it under token $next"
[ "$next" -gt "$token" ]

# 6. The end of a session frees whatever it holds.
call DELETE "/v1/sessions/$other" >/dev/null
call DELETE "/v1/sessions/$session" >/dev/null
