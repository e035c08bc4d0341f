#!/bin/sh
# Each record that was reported as saved is in the log.
while read -r saved record; do
    [ "$saved" = saved ] || continue
    [ -f "$1/log" ] || { echo "record $record was saved, and log is missing"; exit 1; }
    grep -qx "record $record" "$1/log" || { echo "record $record was saved and is lost"; exit 1; }
done <"$SELVEDGE_OUTPUT"
