#!/bin/sh
# Opens the database as a program does after a crash: it is sound, and has all committed rows.
exec python3 - "$1" <<'END'
import os
import sqlite3
import sys

with open(os.environ["SELVEDGE_OUTPUT"]) as output:
    lines = output.read().split("\n")[:-1]  # a line without its end was not reported
committed = [int(line.split()[1]) for line in lines]
try:
    db = sqlite3.connect(sys.argv[1] + "/db")
    sound = db.execute("pragma integrity_check").fetchall()
    if sound != [("ok",)]:
        sys.exit(f"integrity_check: {sound[0][0]}".splitlines()[0])
    if committed:
        rows = dict(db.execute("select number, text from rows"))
        for number in committed:
            if number not in rows:
                sys.exit(f"row {number} was committed and is lost")
        for number, text in rows.items():
            if text != ("x" if number == max(rows) else "y") * 3000:
                sys.exit(f"row {number} has the text of another transaction")
except sqlite3.Error as error:
    sys.exit(f"{type(error).__name__}: {error}")
END
