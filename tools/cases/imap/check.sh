#!/usr/bin/env bash
# check.sh DIR
#
# Each message is whole in one of the mailboxes, or in both. See ../case.py.
set -euo pipefail
exec python3 -B "$(dirname "$0")/../mail/messages.py" check "${1:?usage: check.sh DIR}"
