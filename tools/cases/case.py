"""For the workloads in this directory, which `run` measures and crash tests record.

A case NAME is a directory with two programs:

  NAME/workload DIR   prepares DIR and works in it, once
  NAME/check.sh DIR   fails if DIR is not a state that a crash may leave

Environment: CASE_COUNT is the number of operations. CASE_GROUPS=1 selects patchgroups by the
program itself instead of fsync; `selvedge order` needs no change of the program. CASE_PART=prepare stops
after the preparation, and CASE_PART=work begins there. With CASE_MARKS=1 the work prints `begin`
before the measured part and `end` after it, and waits for a line of its standard input each time.
"""

import os
import sys


def count(default):
    return int(os.environ.get("CASE_COUNT", default))


def has_groups():
    return os.environ.get("CASE_GROUPS") == "1"


def is_part(name):
    """Whether to run this part."""
    return os.environ.get("CASE_PART", name) == name


def mark(word):
    """Frames the measured part of the work."""
    if os.environ.get("CASE_MARKS") == "1":
        print(word, flush=True)
        if not sys.stdin.readline():
            sys.exit("case: the driver has ended")


def root():
    """The directory of the project."""
    return os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def selvedge():
    """The program."""
    target = os.environ.get("CARGO_TARGET_DIR") or os.path.join(root(), "target")
    return os.environ.get("SELVEDGE") or os.path.join(target, "release", "selvedge")


def built(name, make):
    """A library of ours, which `make` builds if it is missing."""
    import subprocess

    target = os.environ.get("CARGO_TARGET_DIR") or os.path.join(root(), "target")
    path = os.path.join(target, "release", name)
    if not os.path.exists(path):
        subprocess.run(["make", "-s", "-C", root(), make], check=True, stdout=sys.stderr)
    return path
