#!/usr/bin/env bash
# check.sh DIR
#
# The database is sound, and the numbers that were committed have no gap. See ../case.py.
set -euo pipefail
cd "${1:?usage: check.sh DIR}"
[ -e numbers.db ] || exit 0
verdict=$(sqlite3 numbers.db 'PRAGMA integrity_check;')
[ "$verdict" = ok ] || { echo "$verdict" >&2; exit 1; }
[ -n "$(sqlite3 numbers.db '.tables')" ] || exit 0
gaps=$(sqlite3 numbers.db 'SELECT coalesce(max(n), 0) - count(*) FROM numbers;')
[ "$gaps" = 0 ] || { echo "$gaps numbers are missing" >&2; exit 1; }
