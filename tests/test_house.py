"""The rules of the house that a program can check: which way imports point, and what `import brainlib` brings along."""

from __future__ import annotations

import graphlib
import subprocess
import sys
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).resolve().parent.parent

# Dear to import, rarely needed, or part of an extra: the file that needs one of these imports it when it is used.
TOO_DEAR = (
    "torchaudio", "hyperpyyaml", "ruamel", "tqdm", "soundfile", "sklearn", "scipy", "matplotlib", "tensorboard",
    "mlflow", "wandb", "IPython", "ipykernel", "torch.distributed.fsdp", "torch.distributed.checkpoint",
    "torch._dynamo", "torch.onnx", "brainlib.compat", "speechbrain",
)  # fmt: skip


def test_arrows_point_downward() -> None:
    """The contracts of pyproject.toml, as `make lint` runs them."""
    check = "from importlinter.cli import lint_imports_command as check; check()"
    done = subprocess.run(
        [sys.executable, "-c", check, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_import_cycle() -> None:
    """Between modules, also where the import stands inside a function; a type named in an annotation is no import."""
    graph = grimp.build_graph("brainlib", exclude_type_checking_imports=True, cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    try:
        graphlib.TopologicalSorter(imports).prepare()
    except graphlib.CycleError as error:
        pytest.fail("import cycle: " + " <- ".join(error.args[1]), pytrace=False)


def test_importing_brainlib_brings_only_what_training_needs() -> None:
    """The reason behind the limit in benchmarks/import_time.py, checked without a clock."""
    code = (
        "import sys, torch; before = set(sys.modules); import brainlib\n"
        "print(*sorted(set(sys.modules) - before), sep='\\n')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    brought = [
        name
        for name in done.stdout.split()
        if any(name == dear or name.startswith(dear + ".") for dear in TOO_DEAR)
    ]
    assert not brought, (
        f"`import brainlib` also imports {', '.join(brought)}; import them where they are used"
    )


def test_importing_brainlib_changes_nothing_around_it() -> None:
    """No handler on the root logger, no variable, no patch of what others use: importing it is not yet using it."""
    code = """
import builtins, logging, os, sys, warnings, torch
state = lambda: {
    "handlers of the root logger": list(logging.getLogger().handlers),
    "variables": dict(os.environ),
    "filters of warnings": list(warnings.filters),
    "sys": (sys.excepthook, sys.path[:], sys.flags),
    "threads and seed of torch": (torch.get_num_threads(), torch.initial_seed()),
    "builtins": dict(vars(builtins)),
    "classes of torch": [dict(vars(c)) for c in (torch.nn.Module, torch.Tensor, torch.optim.Optimizer)],
}
before = state()
import brainlib
after = state()
assert before == after, [name for name in before if before[name] != after[name]]
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_room_is_a_package() -> None:
    """A folder without __init__.py is left out of what is installed, and the arrows in it are not checked."""
    rooms = {path.parent for path in (ROOT / "brainlib").rglob("*.py")}
    missing = sorted(str(room.relative_to(ROOT)) for room in rooms if not (room / "__init__.py").exists())
    assert not missing, f"no __init__.py in {', '.join(missing)}"
