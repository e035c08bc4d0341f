#!/usr/bin/env bash
# check.sh DIR
#
# The database of dpkg is readable, and each package that it calls installed has all of its files with
# their contents. See ../case.py.
set -euo pipefail
dir=${1:?usage: check.sh DIR}
[ -e "$dir/ready" ] || exit 0
admin=$dir/root/var/lib/dpkg
# shellcheck disable=SC2016 # dpkg-query expands it
query=(dpkg-query --admindir="$admin" -W -f '${Package} ${db:Status-Status}\n')
list=$("${query[@]}")
while read -r name status; do
    [ "$status" = installed ] || continue
    sums=$(find "$admin/info" -name "$name.md5sums" -o -name "$name:*.md5sums")
    [ -n "$sums" ] || { echo "$name: no list of its files" >&2; exit 1; }
    (cd "$dir/root" && md5sum --quiet -c "$sums") || { echo "$name: files differ" >&2; exit 1; }
done <<<"$list"
