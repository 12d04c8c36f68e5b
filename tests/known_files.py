"""Which files of the repository are its own: those that git knows. What somebody has left beside them is not tested."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def known_files(*patterns: str, root: Path = ROOT) -> list[Path]:
    """The files under `root` that match one of the patterns, sorted; without git, whatever is there.

    Args:
        patterns: as ``Path.glob`` takes them.
        root: the repository.
    """
    found = {path for pattern in patterns for path in root.glob(pattern)}
    try:
        told = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return sorted(found)
    return sorted(found & {root / name for name in told.stdout.split("\0")})
