"""The failure matrix: all cells, and how many seconds each took (``make faults-ddp``)."""

from __future__ import annotations

import itertools
import sys
import tempfile
from pathlib import Path

from tests.distributed.host import Host
from tests.distributed.test_failures import (
    CELLS,
    FAULTS,
    PLACES,
    RANKS,
    Cell,
    does_not_resume,
    outcome,
    without_meaning,
)


def main() -> None:
    """All cells, and what each took."""
    print(f"{len(CELLS)} cells; left out:")
    left = {
        without_meaning(cell) for cell in itertools.starmap(Cell, itertools.product(FAULTS, PLACES, RANKS))
    } - {""}
    print("\n".join(f"  {reason}" for reason in sorted(left)))
    bad = 0
    with Host() as host:
        for cell in CELLS:
            with tempfile.TemporaryDirectory() as folder:
                wrong, ended, apart = outcome(host, cell, Path(folder))
                if not wrong and cell.fault != "NaN":
                    wrong = does_not_resume(host, Path(folder))
            bad += bool(wrong)
            took = max(each.seconds for each in ended)
            statuses = str([each.status for each in ended])
            print(f"{cell!s:52} {statuses:11} {took:5.1f} s, apart {apart:4.1f} s  {wrong}", flush=True)
    print(f"{len(CELLS) - bad} of {len(CELLS)} cells end as promised")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
