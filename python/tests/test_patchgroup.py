"""Tests of selvedge.Patchgroup on a mount with order.

SELVEDGE_PG_DIR names a directory of the mount, SELVEDGE the program. Without them the tests that
need them are skipped.
"""

import errno
import json
import os
import subprocess
import sys
import tempfile
import threading
import unittest
from contextlib import contextmanager
from typing import IO, Any, Dict, Iterator

import selvedge

DIRECTORY = os.environ.get("SELVEDGE_PG_DIR")
PROGRAM = os.environ.get("SELVEDGE")


class Elsewhere(unittest.TestCase):
    """Directories that are not in a mount of Selvedge."""

    def test_other_file_systems_have_no_groups(self) -> None:
        with self.assertRaises(OSError) as found:
            selvedge.Mount("/proc").patchgroup()
        self.assertEqual(found.exception.errno, errno.ENOENT)
        self.assertEqual(found.exception.filename, "/proc")

    def test_a_file_is_not_a_mount(self) -> None:
        with self.assertRaises(NotADirectoryError):
            selvedge.Mount(__file__).patchgroup()


@unittest.skipUnless(DIRECTORY, "SELVEDGE_PG_DIR is not set")
class Groups(unittest.TestCase):
    """Groups of a mount."""

    def setUp(self) -> None:
        place = tempfile.TemporaryDirectory(dir=DIRECTORY)
        self.addCleanup(place.cleanup)
        self.directory = place.name
        self.mount = selvedge.Mount(self.directory)

    @contextmanager
    def fails(self, number: int) -> Iterator[None]:
        with self.assertRaises(OSError) as found:
            yield
        self.assertEqual(found.exception.errno, number, os.strerror(found.exception.errno or 0))

    def write(self, name: str, text: str = "text") -> None:
        with open(os.path.join(self.directory, name), "w") as file:
            file.write(text)

    def listed(self, group: selvedge.Patchgroup) -> Dict[str, Any]:
        """The group, as the server lists it."""
        if PROGRAM is None:
            self.skipTest("SELVEDGE is not set")
        command = [PROGRAM, "pg", "list", "--json", self.directory]
        groups = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        found: Dict[str, Any] = next(g for g in groups["groups"] if g["group"] == group.number)
        return found

    def is_engaged(self, group: selvedge.Patchgroup) -> bool:
        return os.getpid() in self.listed(group)["engaged"]

    def test_changes_in_order(self) -> None:
        self.write("old")
        with self.mount.patchgroup() as copy:
            self.write("new")
        with self.mount.patchgroup(after=[copy]) as drop:
            os.remove(os.path.join(self.directory, "old"))
        self.assertEqual(self.listed(drop)["after"], [copy.number])
        self.assertTrue(self.listed(copy)["sealed"])
        drop.sync()
        self.assertEqual(self.listed(copy)["pending"], 0)
        self.assertEqual(self.listed(drop)["pending"], 0)
        self.assertEqual(os.listdir(self.directory), ["new"])

    def test_a_block_engages_the_group(self) -> None:
        group = self.mount.patchgroup()
        self.assertFalse(self.is_engaged(group))
        with group as engaged:
            self.assertIs(engaged, group)
            self.assertTrue(self.is_engaged(group))
            with group:
                pass
            self.assertTrue(self.is_engaged(group))
        self.assertFalse(self.is_engaged(group))
        with self.assertRaises(ZeroDivisionError), group:
            1 / 0
        self.assertFalse(self.is_engaged(group))

    def test_overlapping_blocks_of_threads_share_the_group(self) -> None:
        group = self.mount.patchgroup()
        is_inside, may_leave = threading.Event(), threading.Event()

        def other() -> None:
            with group:
                is_inside.set()
                may_leave.wait(60)

        thread = threading.Thread(target=other)
        thread.start()
        self.assertTrue(is_inside.wait(60))
        with group:
            pass
        self.assertTrue(self.is_engaged(group))
        may_leave.set()
        thread.join()
        self.assertFalse(self.is_engaged(group))

    def test_befores_come_before_the_first_block(self) -> None:
        copy, drop = self.mount.patchgroup(), self.mount.patchgroup()
        with copy, self.fails(errno.EBUSY):
            drop.depend(copy)
        with drop:
            pass
        with self.fails(errno.EBUSY):
            drop.depend(copy)
        with self.fails(errno.EBUSY):
            drop.order()

    def test_a_sealed_group_is_complete(self) -> None:
        copy = self.mount.patchgroup()
        drop = self.mount.patchgroup(after=[copy])
        with self.fails(errno.EINVAL), copy:
            pass
        with self.fails(errno.EINVAL):
            copy.barrier()
        with self.fails(errno.EINVAL):
            copy.depend(drop)
        with self.fails(errno.EINVAL):
            drop.depend(drop)
        copy.sync()

    def test_a_group_that_cannot_depend_is_closed(self) -> None:
        with self.mount.patchgroup() as engaged:
            before = len(os.listdir("/proc/self/fd"))
            with self.fails(errno.EBUSY):
                self.mount.patchgroup(after=[engaged])
            self.assertEqual(len(os.listdir("/proc/self/fd")), before)

    def test_barriers_order_the_changes_of_a_group(self) -> None:
        with self.mount.patchgroup() as group:
            self.write("first")
            group.barrier()
            self.write("second")
        group.sync()
        self.assertEqual(self.listed(group)["pending"], 0)

    def test_fsync_is_a_barrier_in_an_ordered_group(self) -> None:
        group = self.mount.patchgroup()
        group.order()
        self.assertTrue(self.listed(group)["order"])

        def is_pending_after_fsync(file: IO[str]) -> bool:
            file.write("text")
            file.flush()
            os.fsync(file.fileno())
            return int(self.listed(group)["pending"]) > 0

        with group, open(os.path.join(self.directory, "file"), "w") as file:
            # The server may write back on its own at any time, but not each time.
            self.assertTrue(any(is_pending_after_fsync(file) for _ in range(20)))
        group.sync()
        self.assertEqual(self.listed(group)["pending"], 0)

    def test_children_inherit_the_group(self) -> None:
        group = self.mount.patchgroup()
        with group:
            command = [sys.executable, "-c", "input()"]
            child = subprocess.Popen(command, stdin=subprocess.PIPE)
        try:
            self.assertEqual(self.listed(group)["engaged"], [child.pid])
        finally:
            child.communicate(b"\n")
        self.assertEqual(self.listed(group)["engaged"], [])

    def test_programs_inherit_the_descriptor(self) -> None:
        group = self.mount.patchgroup()
        self.assertTrue(os.get_inheritable(group.fileno()))

    def test_a_closed_group_is_ended(self) -> None:
        group = self.mount.patchgroup()
        with group:
            self.write("file")
            group.close()
            self.assertTrue(group.closed)
        group.close()
        for call in (group.fileno, group.sync, group.barrier, group.order, group.__enter__):
            with self.subTest(call=call), self.fails(errno.EBADF):
                call()
        with self.fails(errno.EBADF):
            self.mount.patchgroup(after=[group])

    def test_close_in_a_block_disengages_although_a_child_has_the_descriptor(self) -> None:
        group = self.mount.patchgroup()
        kept = os.dup(group.fileno())
        other = selvedge.Patchgroup(kept)
        with group:
            self.assertTrue(self.is_engaged(other))
            group.close()
            self.assertFalse(self.is_engaged(other))
        other.close()

    def test_an_unused_group_is_closed(self) -> None:
        descriptor = self.mount.patchgroup().fileno()
        with self.fails(errno.EBADF):
            os.fstat(descriptor)

    def test_groups_of_other_files_are_refused(self) -> None:
        group = self.mount.patchgroup()
        other = selvedge.Patchgroup(os.open("/dev/null", os.O_RDWR))
        with self.fails(errno.EBADF):
            group.depend(other)
        with self.fails(errno.ENOTTY), other:
            pass


if __name__ == "__main__":
    unittest.main()
