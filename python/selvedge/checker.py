"""Checkers that judge many crash states in one process.

`selvedge crash explore` starts such a program once, and asks it for the judgement of each state. That
is faster than a new process for each:

    import pathlib
    import selvedge.checker

    def check(directory: pathlib.Path, output: bytes) -> None:
        stored = (directory / "db").read_bytes()
        assert stored.endswith(b"\\n"), "the last line is torn"
        if b"stored\\n" in output:
            assert stored, "a line that was reported as stored is lost"

    selvedge.checker.serve(check)
"""

from __future__ import annotations

import os
import pathlib
import traceback
from typing import Callable, Optional

__all__ = ["Check", "serve"]

Check = Callable[[pathlib.Path, bytes], Optional[str]]
"""A function of a directory and of the program's output before the crash. It raises an exception, or
returns a message, if the state is wrong. It returns None if the state is right."""

# Most characters of a message.
_MESSAGE_MAX = 1000


def serve(check: Check) -> None:
    """Judges states by `check` until the standard input ends.

    The function may print: the standard output of the process becomes its standard error. Its
    standard input is empty. It may change the working directory, which is restored.
    """
    with os.fdopen(_moved(0, os.open(os.devnull, os.O_RDONLY)), "rb") as questions:
        with os.fdopen(_moved(1, os.dup(2)), "wb", buffering=0) as answers:
            here = os.getcwd()
            for question in questions:
                directory, _, output = question.rstrip(b"\n").partition(b"\t")
                message = _judge(check, directory, output)
                os.chdir(here)
                answers.write(b"ok\n" if message is None else _failure(message))


def _moved(number: int, replacement: int) -> int:
    """Moves an open file to a number that children do not inherit, and replaces it."""
    moved = os.dup(number)
    os.dup2(replacement, number)
    os.close(replacement)
    return moved


def _judge(check: Check, directory: bytes, output: bytes) -> Optional[str]:
    with open(output, "rb") as file:
        printed = file.read()
    try:
        message: object = check(pathlib.Path(os.fsdecode(directory)), printed)
    except SystemExit as exit:
        return None if exit.code in (None, 0) else f"exit: {exit.code}"
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # test frameworks have their own
        return _described(error)
    if message is None or isinstance(message, str):
        return message
    return f"the checker returned {message!r}, which is neither None nor a message"


def _described(error: BaseException) -> str:
    """The text of an exception. One without text is described by its place."""
    text = str(error).strip()
    if isinstance(error, AssertionError) and text:
        return text
    name = type(error).__name__
    if text:
        return f"{name}: {text}"
    frames = traceback.extract_tb(error.__traceback__)
    place = frames[-1]
    file = os.path.basename(place.filename)
    return f"{name} in line {place.lineno} of {file}: {place.line or 'no source'}"


def _failure(message: str) -> bytes:
    """The answer with this message, in one line."""
    line = " ".join(message.split())[:_MESSAGE_MAX]
    return f"fail {line}\n".encode("utf-8", "backslashreplace")
