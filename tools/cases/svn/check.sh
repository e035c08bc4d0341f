#!/usr/bin/env bash
# check.sh DIR
#
# The database of the working copy is sound, `svn cleanup` and `svn update` bring it up to date, and all
# files have the contents that it records. See ../case.py.
set -euo pipefail
dir=${1:?usage: check.sh DIR}
[ -e "$dir/ready" ] || exit 0
cd "$dir/work"
verdict=$(sqlite3 .svn/wc.db 'PRAGMA integrity_check;')
[ "$verdict" = ok ] || { echo "$verdict" >&2; exit 1; }
config=$(mktemp -d)
trap 'rm -rf "$config"' EXIT
svn=(svn --non-interactive --config-dir "$config")
# An update that was interrupted is done again, as after a killed one.
"${svn[@]}" cleanup
"${svn[@]}" update -q
status=$("${svn[@]}" status)
[ -z "$status" ] || { echo "$status" >&2; exit 1; }
while IFS='|' read -r path sum; do
    found=$(sha1sum <"$path")
    [ "\$sha1\$${found%% *}" = "$sum" ] || { echo "$path: other contents" >&2; exit 1; }
done < <(sqlite3 .svn/wc.db "SELECT local_relpath, checksum FROM nodes WHERE kind = 'file' AND op_depth = 0;")
