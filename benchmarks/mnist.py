"""The recipe's small network on the complete MNIST: at least 0.990 on test within 3 epochs.

    python benchmarks/mnist.py --data_folder DIR

Without --data_folder it looks in the folder ``mnist`` below the one that BRAINLIB_DATA names, then in
``../shared/data/mnist`` beside the repository; failing both, it downloads 11 MB to ``data/mnist``. One core needs about
a minute; --threads 0 takes all cores (faster, with other last bits).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import brainlib as bl

ROOT = Path(__file__).resolve().parent.parent
FLOOR, EPOCHS = 0.990, 3


def find_data() -> Path:
    """The first folder that has the first of MNIST's files; where there is none, the one to download to."""
    named = os.environ.get("BRAINLIB_DATA")
    homes = [Path(named)] if named else []
    for home in (*homes, ROOT.parent / "shared" / "data"):
        if any((home / "mnist").glob("train-images-idx3-ubyte*")):
            return home / "mnist"
    return ROOT / "data" / "mnist"


def main() -> int:
    """Run it; returns the exit status, 1 where the bar is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data_folder", type=Path, help="where MNIST's four idx files are")
    parser.add_argument("--seed", type=int, default=1234)
    parser.add_argument("--threads", type=int, default=1, help="0: as many as there are cores")
    arguments = parser.parse_args()
    threads = arguments.threads or os.cpu_count() or 1

    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable, ROOT / "recipes/digits/train.py", ROOT / "hparams/digits/cnn.yaml",
            "--output_folder", folder, "--dataset", "mnist", "--data_folder", arguments.data_folder or find_data(),
            "--number_of_epochs", EPOCHS, "--seed", arguments.seed, "--num_threads", threads, "--noprogressbar",
        ]  # fmt: skip
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        }
        status = subprocess.run([str(word) for word in command], env=environment).returncode
        if status != 0:
            return status
        rows = bl.read_metrics(Path(folder) / "metrics.jsonl", merge_by="epoch")
        results = json.loads((Path(folder) / "results.json").read_text())

    print(f"\nMNIST, cnn.yaml, {EPOCHS} epochs, seed {arguments.seed}, {threads} thread(s)")
    print("epoch    train    valid     test")
    for row in rows:
        accuracies = "".join(f"{row[group]['accuracy']:9.4f}" for group in ("train", "valid", "test"))
        print(f"{row['epoch']:5}{accuracies}")
    accuracy, passed = results["test"]["accuracy"], results["test"]["accuracy"] >= FLOOR
    print(f"test accuracy {accuracy:.4f}, at least {FLOOR:.3f} wanted: {'passed' if passed else 'MISSED'}")
    print(f"seconds of training: {results['seconds']:.1f}")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
