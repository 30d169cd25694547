"""Goes through the areas of the interface at a running gateway: check.py PROGRAM [AREA...]

A line for each statement that fails, a line with the counts of each area, the statements that no client can check, and the sum.
"""

import importlib
import sys
import tempfile
import time
from pathlib import Path

from gateway import without_secrets
from statement import Unmet
from world import World


def areas(names):
    here = Path(__file__).parent
    sys.path.insert(0, str(here / "areas"))
    files = sorted(path.stem for path in (here / "areas").glob("a[0-9]*.py"))
    found = [importlib.import_module(name).area for name in files]
    if unknown := set(names) - {area.name for area in found}:
        raise SystemExit(
            f"no such area: {', '.join(sorted(unknown))}. There are: {', '.join(area.name for area in found)}"
        )
    return [area for area in found if not names or area.name in names]


def check(area, world):
    """The number of statements that passed and failed."""
    began, failed = time.monotonic(), 0
    for number, (text, statement) in enumerate(area.statements, 1):
        try:
            statement(world)
            continue
        except Unmet as unmet:
            problem = str(unmet)
        # An answer of another shape ends in one of these, and the other statements are checked nevertheless.
        except Exception as error:
            problem = f"expected an answer to look at, saw {type(error).__name__}: {error}"
        failed += 1
        print(f"FAIL: {area.name} {number}: {text}: {without_secrets(problem)}", flush=True)
    passed = len(area.statements) - failed
    print(f"{area.name}: {passed} statements hold, {failed} do not ({time.monotonic() - began:.1f} s)", flush=True)
    return passed, failed


def main():
    program, names = sys.argv[1], sys.argv[2:]
    chosen = areas(names)
    passed = failed = 0
    with tempfile.TemporaryDirectory(prefix="tollgate-interface-") as folder:
        world = World(program, folder)
        try:
            for area in chosen:
                area_passed, area_failed = check(area, world)
                passed, failed = passed + area_passed, failed + area_failed
        finally:
            world.close()
    for area in chosen:
        for text, reason in area.unseen:
            print(f"not checked: {area.name}: {text}: {reason}")
    print(
        f"note: {len(chosen)} areas, {passed + failed} statements, {sum(len(area.unseen) for area in chosen)} that no client can check"
    )
    print(f"{passed} passed, {failed} failed")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
