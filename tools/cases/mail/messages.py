"""Messages of 2 KiB for the cases mail and imap, and the check that none is lost.

  messages.py check DIR   each message is whole in some file of DIR/mail
"""

import os
import sys

BYTES = 2048
# Dovecot's own files, and messages that are not delivered.
OTHER = ("dovecot", "tmp")


def body(number):
    line = f"line of message {number:05}, which a crash must not lose\n"
    return (line * (BYTES // len(line) + 1))[: BYTES - 81] + "\n"


def message(number):
    return f"From: a@example.com\nTo: b@example.com\nSubject: message {number:05}\n\n{body(number)}"


def make(mail, form, count):
    """Makes the directory `mail`: a mailbox with the messages, and an empty one, `archive`."""
    os.makedirs(mail)
    if form == "maildir":
        for box in ("", ".archive"):
            for part in ("cur", "new", "tmp"):
                os.makedirs(os.path.join(mail, box, part))
        for number in range(1, count + 1):
            name = f"{1700000000 + number}.M{number}P1.host"
            with open(os.path.join(mail, "new", name), "w") as file:
                file.write(message(number))
    else:
        with open(os.path.join(mail, "inbox"), "w") as file:
            for number in range(1, count + 1):
                head = "From a@example.com Thu Jan  1 00:00:00 2026\nX-Status:  \n"
                file.write(f"{head}{message(number)}\n")
        open(os.path.join(mail, "archive"), "w").close()


def settle(directory, count):
    """Makes all durable, then the note that the preparation is complete."""
    mount = os.open(directory, os.O_RDONLY)
    for place, directories, files in os.walk(os.path.join(directory, "mail")):
        for name in [os.path.join(place, file) for file in files] + [place]:
            file = os.open(name, os.O_RDONLY)
            os.fsync(file)
            os.close(file)
    os.fsync(mount)
    with open(os.path.join(directory, "ready"), "w") as file:
        file.write(f"{count}\n")
        file.flush()
        os.fsync(file.fileno())
    os.fsync(mount)
    os.close(mount)


def check(directory):
    try:
        with open(os.path.join(directory, "ready")) as file:
            count = int(file.read() or 0)
    except FileNotFoundError:
        return
    found = []
    for place, directories, files in os.walk(os.path.join(directory, "mail")):
        directories[:] = [d for d in directories if d not in OTHER]
        for name in files:
            if not name.startswith(OTHER):
                with open(os.path.join(place, name), errors="replace") as file:
                    found.append(file.read().replace("\r\n", "\n"))
    text = "\0".join(found)
    # The body names its message in each line, so it is in no other message.
    lost = [number for number in range(1, count + 1) if body(number) not in text]
    if lost:
        sys.exit(f"{len(lost)} of {count} messages are lost or not whole, the first is {lost[0]}")


if __name__ == "__main__":
    check(sys.argv[2])
