"""Tests of selvedge.checker: a server is asked through pipes, as the explorer asks it."""

import os
import subprocess
import sys
import tempfile
import textwrap
import unittest
from typing import List

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class Serve(unittest.TestCase):
    """Answers of a server."""

    def setUp(self) -> None:
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.directory = place.name

    def state(self, name: str, contents: str) -> str:
        """A question for a state with a file `f`, whose output is `said NAME`."""
        state = os.path.join(self.directory, name)
        os.mkdir(state)
        with open(os.path.join(state, "f"), "w") as file:
            file.write(contents)
        with open(state + ".output", "w") as file:
            file.write("said " + name)
        return f"{state}\t{state}.output\n"

    def answers(self, check: str, *questions: str) -> List[str]:
        """The answers of a server with this body of its function."""
        body = textwrap.indent(textwrap.dedent(check), "    ")
        program = "import os, subprocess, sys, selvedge\n"
        program += f"def check(directory, output):\n{body}\n"
        program += "selvedge.checker.serve(check)\n"
        done = subprocess.run(
            [sys.executable, "-B", "-W", "error", "-c", program],
            input="".join(questions),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            universal_newlines=True,
            cwd=ROOT,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.errors = done.stderr
        return done.stdout.splitlines()

    def test_none_is_right_and_a_message_is_wrong(self) -> None:
        check = """
            text = (directory / "f").read_text()
            return None if text == "old" else "f has " + text
        """
        states = [self.state("a", "old"), self.state("b", "new"), self.state("c", "old")]
        self.assertEqual(self.answers(check, *states), ["ok", "fail f has new", "ok"])

    def test_the_output_is_that_of_the_state(self) -> None:
        states = [self.state("a", ""), self.state("b", "")]
        answers = self.answers("assert output == b'said a', 'other'", *states)
        self.assertEqual(answers, ["ok", "fail other"])

    def test_every_exception_is_a_failure_in_one_line(self) -> None:
        check = """
            kind = (directory / "f").read_text()
            if kind == "bare":
                assert kind != "bare"
            if kind == "exit":
                sys.exit(3)
            if kind == "value":
                return False
            assert kind != "lines", "one\\n\\ttwo \\udc80"
            open(directory / "missing")
        """
        kinds = ["bare", "exit", "value", "lines", "missing"]
        answers = self.answers(check, *(self.state(kind, kind) for kind in kinds))
        self.assertEqual(len(answers), len(kinds))
        self.assertRegex(answers[0], "^fail AssertionError in line [0-9]+ of <string>")
        self.assertEqual(answers[1], "fail exit: 3")
        self.assertIn("returned False", answers[2])
        self.assertEqual(answers[3], "fail one two \\udc80")
        self.assertRegex(answers[4], "^fail FileNotFoundError: .*missing")

    def test_the_function_and_its_children_may_print_and_read(self) -> None:
        check = """
            print("printed")
            os.write(1, b"written\\n")
            subprocess.run(["sh", "-c", "echo child; cat"], check=True)
            os.chdir(directory)
        """
        answers = self.answers(check, self.state("a", ""), self.state("b", ""))
        self.assertEqual(answers, ["ok", "ok"])
        for word in ["printed", "written", "child"]:
            self.assertEqual(self.errors.count(word), 2)

    def test_a_long_message_is_cut(self) -> None:
        answers = self.answers("return 'x' * 100000", self.state("a", ""))
        self.assertEqual(answers, ["fail " + "x" * 1000])


if __name__ == "__main__":
    unittest.main()
