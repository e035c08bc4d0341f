#!/bin/sh
# Messages in new are complete, and each message that was reported as delivered is there.
for message in "$1"/new/*; do
    [ -f "$message" ] || continue
    grep -q 'The end' "$message" || { echo "new/${message##*/} is incomplete"; exit 1; }
done
while read -r delivered number; do
    [ "$delivered" = delivered ] || continue
    [ -f "$1/new/$number" ] || { echo "message $number was delivered and is lost"; exit 1; }
done <"$SELVEDGE_OUTPUT"
