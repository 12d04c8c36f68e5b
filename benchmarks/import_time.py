"""How long imports take: `import brainlib` may cost 0.15 s over `import torch`; and what each dependency costs.

Every sample is a fresh interpreter that imports torch first and then the module, each under its own clock, so a slow
start of torch does not blur the difference. The modules take turns, so that a busy moment hits all of them. The median
is shown. The first round only fills the disk cache and that of compiled files, and is not counted.

    python benchmarks/import_time.py --rounds 7
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 0.15  # seconds over `import torch`

# What brainlib depends on, and two corners of torch that are dear enough to be imported only when chosen.
MODULES = (
    "brainlib",
    "numpy", "tqdm", "tqdm.notebook", "hyperpyyaml", "ruamel.yaml", "soundfile", "torchaudio",
    "sklearn.datasets", "matplotlib.pyplot", "torch.utils.tensorboard", "nbclient",
    "torch.distributed.fsdp", "torch.distributed.checkpoint",
)  # fmt: skip

PROBE = """
import sys, time
start = time.perf_counter()
import torch
middle = time.perf_counter()
import {module}
print(middle - start, time.perf_counter() - middle)
"""


# Without its compiled files Python would compile every module anew in each sample, which no user's second start does.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def sample(module: str) -> tuple[float, float]:
    """Seconds for `import torch`, and then for the module, in an interpreter of its own."""
    code = PROBE.format(module=module)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"import {module} failed:\n{done.stderr}")
    torch_seconds, module_seconds = map(float, done.stdout.split())
    return torch_seconds, module_seconds


def is_installed(module: str) -> bool:
    """Of an extra that is not installed there is nothing to measure."""
    return importlib.util.find_spec(module.partition(".")[0]) is not None


def main() -> int:
    """Print one line a module; 1 if `import brainlib` is over the limit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="counted samples of each module (default 5)")
    parser.add_argument("--only", nargs="*", default=MODULES, help="modules to measure")
    arguments = parser.parse_args()

    sys.path.insert(0, str(ROOT))
    modules = [module for module in arguments.only if is_installed(module)]
    for absent in sorted(set(arguments.only) - set(modules)):
        print(f"{absent}: not installed, left out")

    seconds: dict[str, list[float]] = {module: [] for module in ("torch", *modules)}
    for number in range(arguments.rounds + 1):
        for module in modules:
            torch_seconds, module_seconds = sample(module)
            if number > 0:
                seconds["torch"].append(torch_seconds)
                seconds[module].append(module_seconds)

    base = statistics.median(seconds["torch"])
    print(
        f"{'import':32} {'seconds':>8} {'of torch':>9}   (median of {arguments.rounds}, on top of import torch)"
    )
    for module, samples in seconds.items():
        middle = statistics.median(samples)
        print(f"{module:32} {middle:8.3f} {middle / base:9.1%}")

    if "brainlib" in modules:
        cost = statistics.median(seconds["brainlib"])
        print(f"import brainlib costs {cost:.3f} s over import torch; the limit is {LIMIT} s")
        return int(cost > LIMIT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
