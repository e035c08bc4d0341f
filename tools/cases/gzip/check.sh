#!/usr/bin/env bash
# check.sh DIR
#
# Each file of the list is there with its contents, or its compressed file is. See ../case.py.
set -euo pipefail
cd "${1:?usage: check.sh DIR}"
# Without a whole list the work has not begun.
[ -d files ] && [ -s sums ] || exit 0
cd files
while read -r sum size name; do
    if [ -e "$name" ]; then
        found=$(cksum <"$name")
    else
        found=$(gzip -dc "$name.gz" | cksum) || { echo "$name: neither it nor $name.gz is whole" >&2; exit 1; }
    fi
    [ "$found" = "$sum $size" ] || { echo "$name: other contents" >&2; exit 1; }
done <../sums
