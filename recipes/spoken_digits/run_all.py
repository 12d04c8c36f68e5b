#!/usr/bin/env python3
"""Run all that the table of the README is made of, one after the other, and print the table.

    python recipes/spoken_digits/run_all.py results/spoken_digits --data_folder DIR

Stopped and started again it goes on: what is finished is not run again. ``--seeds 1`` is a third of the time. Whatever
else stands on the command line is handed to each run.

``--choose`` is to choose by, for speakers who are not heard in training: each in turn is valid, with another one set
aside, and the table is of the accuracy on valid. Give each choice a folder of its own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from prepare import SPEAKERS

HERE = Path(__file__).resolve().parent
HPARAMS = HERE.parents[1] / "hparams" / "spoken_digits"


def runs(choose: bool = False) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Of each row of the table its name, its hparams file, and more words."""
    if choose:
        for aside, speaker in zip((*SPEAKERS[-1:], *SPEAKERS), SPEAKERS, strict=False):
            yield f"digits, {speaker} as valid", "held_out", ("--hold_out", aside, "--valid_speaker", speaker)
        return
    yield "digits, official split", "digits", ()
    yield "speaker, official split", "speaker", ()
    for speaker in SPEAKERS:
        yield f"digits, {speaker} held out", "held_out", ("--hold_out", speaker)


def table(found: dict[str, list[dict[str, Any]]], part: str = "test") -> str:
    """The results on a part of the data as Markdown, of each row one a seed."""
    seeds = [result["seed"] for result in next(iter(found.values()))]
    lines = [
        f"| {part} accuracy, % | mean | " + " | ".join(f"seed {seed}" for seed in seeds) + " | CPU s | s |",
        "|---|---|" + "---|" * (len(seeds) + 2),
    ]
    for name, results in found.items():
        accuracies = [100 * result[part]["accuracy"] for result in results]
        times = [mean(result[key] for result in results) for key in ("cpu_seconds", "seconds")]
        cells = [
            f"{mean(accuracies):.2f}",
            *(f"{each:.2f}" for each in accuracies),
            *(f"{t:.0f}" for t in times),
        ]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    folds = {
        name: [100 * r[part]["accuracy"] for r in each] for name, each in found.items() if each[0]["hold_out"]
    }
    if len(folds) == len(SPEAKERS):
        by_seed = [mean(each) for each in zip(*folds.values(), strict=True)]
        worst = [min(each) for each in zip(*folds.values(), strict=True)]
        for name, values in (("mean of the six", by_seed), ("worst of the six", worst)):
            cells = [f"{mean(values):.2f}", *(f"{each:.2f}" for each in values), "", ""]
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], allow_abbrev=False)
    parser.add_argument("folder", type=Path, help="each run gets a folder in it")
    parser.add_argument("--data_folder", default="data/fsdd", help="what holds the folder recordings")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="how many, from 1 on (default: 3)")
    parser.add_argument(
        "--finished_only", action="store_true", help="run nothing: the table of what is finished"
    )
    parser.add_argument("--choose", action="store_true", help="each speaker as valid, none as test")
    given, others = parser.parse_known_args(arguments)

    found: dict[str, list[dict[str, Any]]] = {name: [] for name, *_ in runs(given.choose)}
    for seed in range(1, given.seeds + 1):
        for name, file, words in runs(given.choose):
            folder = given.folder / f"{name.replace(', ', '-').replace(' ', '-')}-seed{seed}"
            if not (folder / "results.json").exists():
                if given.finished_only:
                    continue
                command = [sys.executable, str(HERE / "train.py"), str(HPARAMS / f"{file}.yaml"), *words]
                command += ["--output_folder", str(folder), "--data_folder", given.data_folder]
                command += ["--seed", str(seed), "--noprogressbar", *others]
                print(f"== {name}, seed {seed}", flush=True)
                subprocess.run(command, check=True)
            found[name].append(json.loads((folder / "results.json").read_text()))
    found = {name: results for name, results in found.items() if len(results) == given.seeds}
    given.folder.joinpath("results.json").write_text(json.dumps(found, indent=2) + "\n")
    print(table(found, "valid" if given.choose else "test"))


if __name__ == "__main__":
    main()
