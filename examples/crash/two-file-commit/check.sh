#!/bin/sh
# The marker is there only if the data are.
[ -e "$1/commit" ] || exit 0
[ -e "$1/data" ] || { echo "commit is there, and data is missing"; exit 1; }
for block in 0 1 2; do
    count=$(grep -cax "block $block" "$1/data")
    [ "$count" = 500 ] || { echo "commit is there, and block $block of data is incomplete"; exit 1; }
done
