#!/usr/bin/env bash
# check.sh DIR
#
# The repository is whole, and its history has no gap. See ../case.py.
set -euo pipefail
dir=${1:?usage: check.sh DIR}
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1
git=$dir/work/.git
# Git makes a repository in steps, the objects last. Before that there is no branch.
if [ ! -s "$git/config" ] || [ ! -s "$git/HEAD" ] || [ ! -d "$git/objects" ]; then
    [ ! -e "$git/refs/heads/main" ] && [ ! -e "$git/packed-refs" ]
    exit
fi
cd "$dir/work"
git -c safe.directory='*' fsck --full --strict --no-progress --no-dangling
branch=.git/refs/heads/main
[ -e "$branch" ] || [ -e .git/packed-refs ] || exit 0
expected=$(git -c safe.directory='*' rev-list --count main)
newest=$(git -c safe.directory='*' log -1 --format=%s main)
[ "$newest" = "change $expected" ] || { echo "$expected commits, the newest is '$newest'" >&2; exit 1; }
if git -c safe.directory='*' rev-parse -q --verify packed >/dev/null; then
    [ "$(git -c safe.directory='*' rev-parse packed)" = "$(git -c safe.directory='*' rev-parse main)" ]
fi
