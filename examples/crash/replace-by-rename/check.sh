#!/bin/sh
# After the installation, the configuration is the old one or the new one as a whole.
grep -q installed "$SELVEDGE_OUTPUT" || exit 0
[ -f "$1/config" ] || { echo "config is missing"; exit 1; }
for colour in red green; do
    if yes "colour=$colour" | head -n 1000 | cmp -s - "$1/config"; then
        exit 0
    fi
done
echo "config has $(wc -c <"$1/config") bytes and is neither old nor new"
exit 1
