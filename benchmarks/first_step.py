"""How long it takes from starting Python to the end of the first update: with brainlib, and written by hand.

Both scripts train the same linear layer with the same optimizer, each in an interpreter of its own, in turns. What they
share (starting Python, importing torch, what torch itself imports when the first optimizer is made) is in both numbers.

    python benchmarks/first_step.py --rounds 7
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Each prints the reading of a clock that all processes of a computer share.
BY_HAND = """
import time, torch
torch.set_num_threads(1)
model = torch.nn.Linear(10, 10)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for batch in [{"input": torch.rand(10, 10), "target": torch.rand(10, 10)}]:
    loss = torch.nn.functional.l1_loss(model(batch["input"]), batch["target"])
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    optimizer.step()
    optimizer.zero_grad()
print(time.monotonic())
"""

WITH_BRAINLIB = """
import time, torch, brainlib as bl
torch.set_num_threads(1)

class SimpleBrain(bl.Brain):
    def compute_forward(self, batch, stage):
        return self.modules.model(batch["input"])
    def compute_objectives(self, predictions, batch, stage):
        return torch.nn.functional.l1_loss(predictions, batch["target"])
    def on_fit_batch_end(self, batch, outputs, loss, should_step):
        print(time.monotonic())

model = torch.nn.Linear(10, 10)
brain = SimpleBrain({"model": model}, opt_class=lambda p: torch.optim.SGD(p, 0.1))
brain.fit(range(1), [{"input": torch.rand(10, 10), "target": torch.rand(10, 10)}])
"""


def seconds_to_first_step(script: str) -> float:
    """From just before Python is started to what the script printed."""
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"the script failed:\n{done.stderr}")
    return float(done.stdout.split()[0]) - start


def main() -> int:
    """Print both medians and their ratio. There is no limit: what torch takes to start differs too much."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="counted samples of each script (default 5)")
    arguments = parser.parse_args()

    by_hand, with_brainlib = [], []
    for number in range(arguments.rounds + 1):  # the first round only fills the disk cache
        pair = seconds_to_first_step(BY_HAND), seconds_to_first_step(WITH_BRAINLIB)
        if number > 0:
            by_hand.append(pair[0])
            with_brainlib.append(pair[1])

    base, ours = statistics.median(by_hand), statistics.median(with_brainlib)
    print(
        f"from start to first step, median of {arguments.rounds}: {ours:.2f} s with brainlib, {base:.2f} s by hand",
        end="",
    )
    print(f" ({ours / base:.2f} times)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
