"""Patchgroups: order between changes of files, without fsync.

A group collects the changes that a process makes to files of one mount while it has the group
*engaged*. A group that depends on others reaches the disk after them. No call waits for the disk
except `Patchgroup.sync`. The input is not removed before the output is on the disk:

    fs = selvedge.Mount("/mnt/mail")
    with fs.patchgroup() as copy:
        shutil.copyfile("/mnt/mail/inbox/1", "/mnt/mail/archive/1")
    with fs.patchgroup(after=[copy]) as drop:
        os.remove("/mnt/mail/inbox/1")

The life of a group has three parts. First it gets the groups on which it depends. Then processes
engage and disengage it, any number of times. At last another group depends on it: this seals it, and
no process engages it any more. So a group cannot depend on itself, not even through other groups.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import threading
from types import TracebackType
from typing import Iterable, Optional, Type, Union

__all__ = ["Mount", "Patchgroup"]

# The protocol between programs and the server of a mount. The open of a name that begins with this
# makes a group. Calls are requests of ioctl.
NAME = ".selvedge-patchgroup"
DEPEND = 0x4008E901
ENGAGE = 0xE902
DISENGAGE = 0xE903
SYNC = 0xE904
BARRIER = 0xE905
ORDER = 0xE906


def _error(number: int, path: Optional[str] = None) -> OSError:
    return OSError(number, os.strerror(number), path)


class Mount:
    """The mount of Selvedge that a directory is in."""

    def __init__(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """Names the mount by the directory `path`. The first group shows whether it is one."""
        self.path: str = os.fspath(path)

    def __repr__(self) -> str:
        return f"selvedge.Mount({self.path!r})"

    def patchgroup(self, after: Iterable[Patchgroup] = ()) -> Patchgroup:
        """Makes a group that depends on the groups `after`, and seals them.

        Raises the errors of `Patchgroup.depend`, and OSError:

        ENOENT, ENOTDIR, EINVAL    `path` is not a directory of a mount of Selvedge
        EOPNOTSUPP                 its file system keeps no order
        EROFS                      the mount is read-only
        ENFILE                     the user has 4096 groups in the mount
        """
        group = Patchgroup(_open(self.path))
        try:
            for before in after:
                group.depend(before)
        except BaseException:
            group.close()
            raise
        return group


def _open(path: str) -> int:
    """Opens a new group in the mount of this directory."""
    # The random rest keeps two opens at the same time apart.
    name = f"{NAME}.{os.urandom(8).hex()}"
    directory = os.open(path, os.O_PATH | os.O_DIRECTORY)
    try:
        descriptor = os.open(name, os.O_RDWR | os.O_NOCTTY, dir_fd=directory)
    except OSError as error:
        # The name of the group says nothing to the caller.
        raise _error(error.errno or errno.EIO, path) from None
    finally:
        os.close(directory)
    try:
        # Another file system may have a file of that name.
        if os.fstat(descriptor).st_ino >> 62 != 1:
            raise _error(errno.EINVAL, path)
        os.set_inheritable(descriptor, True)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


class Patchgroup:
    """Changes of files that reach the disk after those of the groups on which this one depends.

    `Mount.patchgroup` makes it. A `with` block engages it: the changes that the process makes in the
    block belong to the group. All threads of the process share what it has engaged. Blocks may be
    nested, and may overlap in several threads: the last one that ends disengages the group.

    A process that starts in the block has the group engaged to its end. Keep the group open until
    then: its last close disengages it in all processes. The group is a descriptor
    that programs inherit, but the module subprocess passes it on only with
    `pass_fds=[group.fileno()]` or `close_fds=False`.

    Errors are OSError:

    EACCES      the mount serves one user only (without allow_other)
    EBADF       the group is closed, or is not of the same mount
    EBUSY       a process has engaged the group, so that it is too late for the call
    EINVAL      the group is sealed, or depends on itself
    EIO         a change could not be stored
    ENOTCONN    the server of the mount has ended
    EPERM       another user made the group
    ESRCH       the server cannot see the process, which is in another PID namespace
    """

    def __init__(self, descriptor: int) -> None:
        """Wraps the descriptor of a group, and closes it in the end."""
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._blocks = 0

    def __repr__(self) -> str:
        state = "closed" if self._descriptor < 0 else f"descriptor {self._descriptor}"
        return f"<selvedge.Patchgroup, {state}>"

    def fileno(self) -> int:
        """The descriptor of the group."""
        if self._descriptor < 0:
            raise _error(errno.EBADF)
        return self._descriptor

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._descriptor < 0

    @property
    def number(self) -> int:
        """The number of the group in its mount, as `selvedge pg list` shows it."""
        return os.fstat(self.fileno()).st_ino & ~(1 << 62)

    def depend(self, before: Patchgroup) -> None:
        """Makes this group depend on the group `before`, and seals `before`.

        Raises EBUSY if a running process, which may be a child, has `before` engaged, or if a process
        has ever engaged this group. Raises EINVAL if this group is sealed, or is `before`; EBADF if
        the two are not of one mount.
        """
        own, other = os.fstat(self.fileno()), os.fstat(before.fileno())
        # Each mount counts its groups: the number says nothing about groups of another mount.
        if own.st_dev != other.st_dev:
            raise _error(errno.EBADF)
        fcntl.ioctl(self.fileno(), DEPEND, struct.pack("=Q", other.st_ino))

    def __enter__(self) -> Patchgroup:
        """Engages the group in this process.

        Raises EINVAL if the group is sealed, EPERM if it is another user's.
        """
        with self._lock:
            self._request(ENGAGE)
            self._blocks += 1
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        """Disengages the group in this process, unless it is in another block of the group."""
        with self._lock:
            self._blocks -= 1
            # `close` has disengaged the group.
            if self._blocks == 0 and not self.closed:
                self._request(DISENGAGE)

    def barrier(self) -> None:
        """Makes further changes of the group depend on its changes so far. Waits for nothing.

        Raises EINVAL if the group is sealed, EIO if a change could not be stored.
        """
        self._request(BARRIER)

    def sync(self) -> None:
        """Waits until the changes of the group so far are durable, and those on which they depend.

        Raises EIO if a change could not be stored.
        """
        self._request(SYNC)

    def order(self) -> None:
        """Makes each fsync, fdatasync and synchronous write of engaged processes a barrier.

        These calls then do not wait for the disk. Raises EBUSY if a process has ever engaged the
        group.
        """
        self._request(ORDER)

    def close(self) -> None:
        """Closes the descriptor. The order of the changes stays.

        This disengages the group in this process, and in all processes if no other one has inherited
        the descriptor. A second call has no effect.
        """
        with self._lock:
            if self.closed:
                return
            try:
                if self._blocks > 0:
                    self._request(DISENGAGE)
            finally:
                descriptor, self._descriptor = self._descriptor, -1
                os.close(descriptor)

    def __del__(self) -> None:
        self.close()

    def _request(self, number: int) -> None:
        fcntl.ioctl(self.fileno(), number)
