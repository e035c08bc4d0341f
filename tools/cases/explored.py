"""explored.py CASE FSYNC ORDER

Prints a row for each model of two reports of `selvedge crash explore --json`: of a case as it is, and
with its syncs as barriers. Its status is 1 if the second one fails where the first one does not, or if
a model could not be explored.
"""

import json
import sys


def results(path):
    """The models by name: whether one failed, and its result in words."""
    with open(path, encoding="utf-8") as file:
        report = json.load(file)
    found = {}
    for model in report["models"]:
        name, failed, judged = model["model"], model["failed"], model["judged"]
        if "refused" in model:
            found[name] = (None, "not explored: " + model["refused"])
        elif failed:
            message = next((f["message"] for f in report["failures"] if f["model"] == name), "")
            found[name] = (True, f"FAILS in {failed} of {judged}: {message}")
        else:
            found[name] = (False, "safe" if model["complete"] else f"{judged} states")
    return found


def main(case, with_fsync, with_order):
    with_fsync, with_order = results(with_fsync), results(with_order)
    is_wrong = False
    for model, (failed, text) in with_fsync.items():
        fails_too, other = with_order.get(model, (failed, "–"))
        is_wrong |= failed is None or fails_too is None or (fails_too and not failed)
        print(case, model, text, other, sep="\t", flush=True)
    sys.exit(is_wrong)


if __name__ == "__main__":
    main(*sys.argv[1:])
