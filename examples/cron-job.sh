#!/bin/sh
# A nightly report. The same line stands in the crontab of every machine, and one of them runs it:
#
#   0 2 * * *  DLOCK_LOCK_SERVER=http://lock:7400 /usr/local/bin/cron-job.sh
#
# Without arguments it takes the lock and calls itself; dlock exec hands the fencing token over in DLOCK_TOKEN, renews the
# lock while the work goes on, and ends the work when the lock is lost.
set -eu

REPORT_DIR=${REPORT_DIR:-/var/tmp/nightly-report}

if [ "${1:-}" != work ]; then
    mkdir -p "$REPORT_DIR"
    code=0
    dlock exec jobs/nightly-report --ttl 30s -- sh "$0" work || code=$?
    case $code in
        75) echo "nightly report: another machine is at it" ;;
        76) echo "nightly report: the lock was lost, the work was ended" >&2; exit 76 ;;
        *) exit "$code" ;;
    esac
    exit 0
fi

: "${DLOCK_TOKEN:?is set by dlock exec}"

# The work. A process that was stopped for an hour in the middle of it goes on here without knowing that its lock is gone
# and that somebody else has written the report meanwhile. So the token is part of what it writes: every report has its
# token in its name, and the valid one is the one with the highest. A late writer changes nothing that anybody reads.
report="$REPORT_DIR/report.$DLOCK_TOKEN"
date -u '+report of %Y-%m-%d' > "$report.part"
echo "written under token $DLOCK_TOKEN by process $$" >> "$report.part"
mv "$report.part" "$report"

newest=$(cd "$REPORT_DIR" && for f in report.*; do echo "${f#report.}"; done | grep -E '^[0-9]+$' | sort -n | tail -n 1)
echo "nightly report: token $DLOCK_TOKEN is done, report.$newest is the valid one"
