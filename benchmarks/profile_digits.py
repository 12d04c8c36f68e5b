"""Where the time of the digits recipe goes: its profile as a table and a picture, and its benchmark line.

    python benchmarks/profile_digits.py            prints them
    python benchmarks/profile_digits.py --write    and puts them into docs/profiling.md and docs/images

The recipe runs as a user runs it, with two options more, in a process of its own.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "profiling.md"
PICTURE = ROOT / "docs" / "images" / "digits-profile.png"
RECIPE = (str(ROOT / "recipes/digits/train.py"), str(ROOT / "hparams/digits/cnn.yaml"))
COLORS = ("#1f77b4", "#d95f02", "#7570b3", "#e7298a", "#66a61e", "#e6ab02", "#a6761d", "#999999")
ROWS_SHOWN = 8


def run(folder: Path, *options: str) -> str:
    """Standard output of the recipe."""
    command = [sys.executable, *RECIPE, "--output_folder", str(folder), "--noprogressbar", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
    return done.stdout


def blocks_of(text: str) -> list[list[str]]:
    """The head, the phases, the modules and the operators of a table."""
    return [block.splitlines() for block in text.strip().split("\n\n")]


def draw(phases: list[str], modules: list[str], path: Path) -> None:
    """One bar for the update, cut into its phases; one bar a module for its own forward and its backward."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.5, 3.6), layout="constrained")
    above, below = figure.subplots(2, 1, height_ratios=(1, 2.4))
    left = 0.0
    for row, color in zip(phases[1:], COLORS, strict=False):
        name, each = re.split(r"\s{2,}", row)[0], float(row.split()[-1])
        above.barh(0, each, left=left, color=color, label=name)
        left += each
    above.set_yticks([])
    above.set_xlabel("milliseconds of an update")
    above.legend(ncols=4, fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)
    rows = [row.split() for row in modules[1:] if float(row.split()[3]) > 0.02 * float(modules[1].split()[2])]
    names = [row[0] for row in rows]
    own, backward = [float(row[3]) for row in rows], [float(row[4]) for row in rows]
    below.barh(names, own, color=COLORS[0], label="own forward")
    below.barh(names, backward, left=own, color=COLORS[1], label="backward")
    below.invert_yaxis()
    below.set_xlabel("milliseconds in all recorded updates, by module")
    below.legend(fontsize=8)
    figure.savefig(path, dpi=110)


def main() -> int:
    """Print table and line; with --write, put them where the docs show them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="into docs/profiling.md and docs/images")
    write = parser.parse_args().write
    with tempfile.TemporaryDirectory() as folder:
        run(Path(folder, "profile"), "--profiler_options", "batch_range=[10, 20]")
        text = Path(folder, "profile", "profile.rank0.cycle0.txt").read_text()
        out = run(Path(folder, "bench"), "--benchmark_max_step", "60")
        line = next(each for each in out.splitlines() if each.startswith('{"benchmark"'))
    head, phases, modules, operators = blocks_of(text)
    shown = "\n\n".join(
        "\n".join(b) for b in (head, phases, modules[: ROWS_SHOWN + 1], operators[: ROWS_SHOWN + 1])
    )
    print(shown, line, sep="\n\n")
    if write:
        draw(phases, modules, PICTURE)
        page = PAGE.read_text()
        for name, content in (("profile", shown), ("benchmark", re.sub(r"(.{90,}?, )", r"\1\n ", line))):
            marked = re.compile(rf"(<!-- {name} -->\n```text\n).*?(\n```)", re.DOTALL)
            page, found = marked.subn(lambda m, content=content: m[1] + content + m[2], page)
            assert found == 1, name
        PAGE.write_text(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
