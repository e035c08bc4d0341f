#!/bin/sh
# After the installation, the configuration is the old one or the new one.
grep -q installed "$SELVEDGE_OUTPUT" || exit 0
[ -f "$1/config" ] || { echo "config is missing"; exit 1; }
grep -qx 'colour=red\|colour=green' "$1/config" && exit 0
echo "config has $(wc -c <"$1/config") bytes and no colour"
exit 1
