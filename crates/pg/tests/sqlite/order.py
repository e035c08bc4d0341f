"""Uses the VFS of libselvedge-sqlite from Python's SQLite.

  order.py LIBRARY modes DIR        transactions in each journal mode, whose syncs are barriers
  order.py LIBRARY frames DIR       a frame of a WAL is one write, and transactions that spill are whole
  order.py LIBRARY journal DIR      writes of a rollback journal are joined, but not past the database's
  order.py LIBRARY two DIR          one process has a database open, and another one is refused
  order.py LIBRARY spanning A B     a transaction on databases in two directories
  order.py LIBRARY full DIR         a full file system: an error, and the commits before it stay
  order.py LIBRARY killed DIR       commits without syncs survive the end of the process
  order.py LIBRARY unsynced DIR     commits of which SQLite synced none, then PRAGMA selvedge_sync
  order.py LIBRARY kept DIR         all of these commits are there
  order.py LIBRARY elsewhere DIR    syncs outside of a mount are those of the default VFS
  order.py LIBRARY fill DB MODE     numbered transactions until an error
  order.py LIBRARY check DB MODE    after a crash: sound, and the numbers have no gap
"""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys

MODES = ("delete", "truncate", "persist", "wal")


def connect(path, vfs="selvedge"):
    loader = sqlite3.connect(":memory:")
    loader.enable_load_extension(True)
    loader.load_extension(LIBRARY)
    loader.close()
    return sqlite3.connect(f"file:{path}?vfs={vfs}", uri=True, isolation_level=None)


def value(database, sql):
    return database.execute(sql).fetchone()[0]


def prepare(path, mode, vfs="selvedge"):
    database = connect(path, vfs)
    assert value(database, f"PRAGMA journal_mode={mode}") == mode
    database.execute("PRAGMA synchronous=FULL")
    database.execute("CREATE TABLE IF NOT EXISTS numbers(n INTEGER PRIMARY KEY, body BLOB)")
    return database


def add(database, number):
    database.execute("BEGIN")
    database.execute("INSERT INTO numbers VALUES(?, randomblob(300))", (number,))
    # Changes of older pages, so that a rollback journal has contents to restore.
    database.execute("UPDATE numbers SET body = randomblob(300) WHERE n % 7 = ?", (number % 7,))
    database.execute("COMMIT")


def sound(path, vfs="selvedge"):
    database = connect(path, vfs)
    assert value(database, "PRAGMA integrity_check") == "ok"
    count = value(database, "SELECT count(*) FROM numbers")
    assert value(database, "SELECT coalesce(max(n), 0) FROM numbers") == count
    database.close()
    return count


def modes(directory):
    for mode in MODES:
        path = os.path.join(directory, f"{mode}.db")
        first = prepare(path, mode)
        assert value(first, "PRAGMA selvedge_order") == "barrier"
        second = connect(path)
        for number in range(1, 51):
            add(first if number % 2 else second, number)
        assert value(first, "PRAGMA selvedge_sync") == "durable"
        first.close()
        assert os.path.exists(path + "-order")
        second.close()
        assert not os.path.exists(path + "-order")
        assert sound(path) == 50 and sound(path, "unix") == 50


def writes():
    with open("/proc/self/io") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("syscw"))


def spill(database):
    # Pages that leave SQLite's small cache are written to the WAL, changed and written again.
    # The frames after them then get new checksums.
    database.execute("PRAGMA cache_size=4")
    database.execute("BEGIN")
    for _ in range(3):
        database.execute("UPDATE numbers SET body = randomblob(600)")
    database.execute("COMMIT")


def frames(directory):
    counts = {}
    for vfs in ("selvedge", "unix"):
        path = os.path.join(directory, f"{vfs}.db")
        database = prepare(path, "wal", vfs)
        before = writes()
        for number in range(1, 101):
            add(database, number)
        counts[vfs] = writes() - before
        spill(database)
        # A crash of the process leaves no index of the WAL.
        for suffix in ("", "-wal"):
            shutil.copyfile(path + suffix, os.path.join(directory, f"copy.db{suffix}"))
        assert sound(os.path.join(directory, "copy.db"), "unix") == 100
        copy = connect(os.path.join(directory, "copy.db"), "unix")
        assert value(copy, "SELECT min(length(body)) FROM numbers") == 600
        copy.close()
        database.close()
        os.unlink(os.path.join(directory, "copy.db"))
    assert counts["selvedge"] * 3 < counts["unix"] * 2, counts


def journal(directory):
    counts, lengths = {}, {}
    for vfs in ("selvedge", "unix"):
        path = os.path.join(directory, f"{vfs}.db")
        database = prepare(path, "delete", vfs)
        before = writes()
        for number in range(1, 101):
            add(database, number)
        counts[vfs] = writes() - before
        database.close()
        # Without syncs, only the order of writes lets a database survive its process.
        child = os.fork()
        if not child:
            database = connect(path, vfs)
            database.execute("PRAGMA synchronous=OFF")
            database.execute("PRAGMA cache_size=4")
            database.execute("BEGIN")
            database.execute("UPDATE numbers SET body = randomblob(600)")
            os.kill(os.getpid(), signal.SIGKILL)
        assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
        assert os.path.getsize(path + "-journal") > 0
        assert sound(path, vfs) == 100
        database = connect(path, vfs)
        lengths[vfs] = value(database, "SELECT max(length(body)) FROM numbers")
        database.close()
    assert counts["selvedge"] * 2 < counts["unix"], counts
    assert set(lengths.values()) == {300}, lengths


def killed(directory):
    for mode in ("delete", "truncate", "persist"):
        for locking in ("normal", "exclusive"):
            path = os.path.join(directory, f"{mode}-{locking}.db")
            prepare(path, mode).close()
            child = os.fork()
            if not child:
                database = connect(path)
                database.execute(f"PRAGMA locking_mode={locking}")
                database.execute(f"PRAGMA journal_mode={mode}")
                database.execute("PRAGMA synchronous=OFF")
                for number in range(1, 4):
                    add(database, number)
                os.kill(os.getpid(), signal.SIGKILL)
            assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
            assert sound(path, "unix") == 3, (mode, locking)


def unsynced(directory):
    for mode, level in (("wal", "NORMAL"), ("wal", "OFF"), ("delete", "OFF")):
        database = prepare(os.path.join(directory, f"{mode}-{level}.db"), mode)
        database.execute(f"PRAGMA synchronous={level}")
        for number in range(1, 4):
            add(database, number)
        assert value(database, "PRAGMA selvedge_order") == "fsync"
        assert value(database, "PRAGMA selvedge_sync") == "durable"
    # A close would do more.
    os._exit(0)


def kept(directory):
    for name in ("wal-NORMAL", "wal-OFF", "delete-OFF"):
        assert sound(os.path.join(directory, f"{name}.db")) == 3, name


def two(directory):
    path = os.path.join(directory, "two.db")
    held = prepare(path, "wal")
    add(held, 1)
    again = [sys.executable, __file__, LIBRARY, "check", path, "wal"]
    other = subprocess.run(again, capture_output=True, text=True)
    assert "database is locked" in other.stderr, other.stderr
    # A new process may have it as soon as this one closes it.
    held.close()
    subprocess.run(again, check=True, stdout=subprocess.DEVNULL)


def spanning(one, other):
    paths = [os.path.join(directory, "part.db") for directory in (one, other)]
    for path in paths:
        prepare(path, "delete").close()
    database = connect(paths[0])
    database.execute("ATTACH ? AS other", (f"file:{paths[1]}?vfs=selvedge",))
    for number in range(1, 11):
        database.execute("BEGIN")
        for schema in ("main", "other"):
            database.execute(f"INSERT INTO {schema}.numbers VALUES(?, randomblob(300))", (number,))
        database.execute("COMMIT")
    database.close()
    assert [sound(path) for path in paths] == [10, 10]
    assert not [name for name in os.listdir(one) if "-mj" in name]


def full(directory):
    status = os.statvfs(directory)
    with open(os.path.join(directory, "ballast"), "w") as ballast:
        os.posix_fallocate(ballast.fileno(), 0, status.f_bavail * status.f_frsize - (4 << 20))
    for mode in MODES:
        path, number = os.path.join(directory, f"{mode}.db"), 0
        database = prepare(path, mode)
        database.execute("PRAGMA cache_size=4")
        error = None
        while not error:
            number += 1
            try:
                database.execute("BEGIN")
                database.execute("INSERT INTO numbers VALUES(?, randomblob(200000))", (number,))
                database.execute("UPDATE numbers SET body = randomblob(200000) WHERE n = ?", (number // 2,))
                database.execute("COMMIT")
            except sqlite3.OperationalError as full:
                error = full
        # The shared memory of a WAL says "disk I/O error" when it cannot grow.
        assert str(error) in ("database or disk is full", "disk I/O error"), error
        assert number > 2, number
        # SQLite may have ended the transaction itself.
        if database.in_transaction:
            database.execute("ROLLBACK")
        assert value(database, "SELECT max(n) FROM numbers") == number - 1
        database.close()
        assert sound(path) == number - 1
        os.unlink(path)


def elsewhere(directory):
    database = prepare(os.path.join(directory, "plain.db"), "delete")
    assert value(database, "PRAGMA selvedge_order") == "fsync"
    add(database, 1)
    assert value(database, "PRAGMA selvedge_sync") == "durable"
    database.close()
    assert os.listdir(directory) == ["plain.db"]


def fill(path, mode):
    child = os.fork()
    if not child:
        try:
            database = prepare(path, mode)
            for number in range(1, 10_000):
                add(database, number)
        except sqlite3.Error:
            # The power is off. Python's own end would report errors of the mount.
            os._exit(0)
        os._exit(1)
    # Without power, the shared memory of a WAL cannot be read.
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, -signal.SIGBUS), code


def check(path, mode):
    database = prepare(path, mode)
    database.close()
    print(sound(path))


if __name__ == "__main__":
    PARTS = (
        (modes, frames, journal, killed, unsynced, kept)
        + (two, spanning, full, elsewhere, fill, check)
    )
    LIBRARY = os.path.abspath(sys.argv[1])
    {f.__name__: f for f in PARTS}[sys.argv[2]](*sys.argv[3:])
