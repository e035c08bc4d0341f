#!/bin/sh
# The table is the old one or the new one as a whole; the new one after it was reported.
grep -q installed "$SELVEDGE_OUTPUT" || exit 0
[ -f "$1/table" ] || { echo "table is missing"; exit 1; }
[ "$(wc -c <"$1/table")" = 12288 ] || { echo "table has another length"; exit 1; }
kinds=$(fold -w 1024 "$1/table" | tr -s ab | sort -u | tr -d '\n')
case $kinds in
    b) ;;
    a) ! grep -q changed "$SELVEDGE_OUTPUT" || { echo "the change was reported and is lost"; exit 1; } ;;
    *) echo "table is partly old and partly new"; exit 1 ;;
esac
