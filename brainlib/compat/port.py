"""What of a script or an hparams file written for speechbrain carries over. Files are read, nothing of them is run."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from brainlib.config.aliases import SPEECHBRAIN, aliases_of

__all__ = ["PortReport", "port"]

_OURS = "brainlib.compat."
_PACKAGE = "speechbrain"
# Modules of its trainer: what brainlib lacks of them cannot be taken from speechbrain without a look.
_TRAINER = frozenset(
    module
    for module in SPEECHBRAIN
    if module
    not in (
        "speechbrain",
        "speechbrain.utils",
        "speechbrain.dataio.dataio",
        "speechbrain.nnet.schedulers",
        "speechbrain.utils.Accuracy",
        "speechbrain.utils.metric_stats",
    )
)
_PACKAGES = frozenset({"speechbrain", "speechbrain.utils", "speechbrain.dataio", "speechbrain.nnet"})

# What a word in a script or a file says about what will be different. docs/porting.md has the reasons.
_DIFFERS = {
    "on_stage_end": "stage_loss is weighted by the size of batches, and is that of all ranks together",
    "fit_batch": "optimizers are watched: a step with gradients that are not finite is not made",
    "optimizers_step": "gradients are clipped over all groups of an optimizer together, not those of the first alone",
    "update_average": "it is called for show alone; stage_loss is computed by brainlib",
    "check_gradients": "bad gradients are found before the step and skip it; there is nothing to do here",
    "check_loss_isfinite": "a bad loss changes no weight; see nonfinite_patience",
    "read_audio": "takes a path, and a segment as start= and stop= in seconds; a dict with samples is not read",
    "write_audio": "arguments are path, samples, sample_rate; samples beyond 1 are refused",
    "DynamicBatchSampler": "an item longer than max_batch_length is an error, or dropped; verbose is sampler.report()",
    "average_checkpoints": "tied weights are averaged once, and integer buffers are not",
    "EpochCounterWithStopper": "direction max stops on a plateau, too",
    "fit": "the first fit resumes from the newest checkpoint, to the batch; another one goes on with the live weights",
    "evaluate": "the Brain has its weights back afterwards",
    "epoch_counter.current": "in the TEST stage it is the last epoch that was trained, since evaluate takes weights "
    "alone; the epoch of these weights is self.checkpointer.loaded.counters['epoch']",
    "FileTrainLogger": "where it is given train_log.txt of the experiment's folder, what brainlib says goes to log.txt",
    "NewBobScheduler": "a metric that is not finite counts as no improvement",
    "max_grad_norm": "null switches clipping off, and so does a negative number; theirs turns gradients round",
}


@dataclass
class PortReport:
    """What `port` found.

    Attributes:
        text: the file with its imports changed.
        carried: what is brainlib's from now on, by line.
        kept: what stays speechbrain's, by line.
        differs: what carries over and is different on purpose, by line.
        left: what could not be changed, by line.

    >>> print(PortReport("", carried=[(1, "speechbrain.core.Brain")]))
    carries over
      line 1: speechbrain.core.Brain
    """

    text: str
    carried: list[tuple[int, str]] = field(default_factory=list)
    kept: list[tuple[int, str]] = field(default_factory=list)
    differs: list[tuple[int, str]] = field(default_factory=list)
    left: list[tuple[int, str]] = field(default_factory=list)

    def __str__(self) -> str:
        lines: list[str] = []
        for title, found in (
            ("carries over", self.carried),
            ("stays speechbrain's, which has to be installed", self.kept),
            ("differs on purpose", self.differs),
            ("could not be changed", self.left),
        ):
            if found:
                by_text: dict[str, list[int]] = {}
                for line, what in sorted(set(found)):
                    by_text.setdefault(what, []).append(line)
                lines.append(title)
                for what, numbers in by_text.items():
                    lines.append(f"  line{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}: {what}")
        return "\n".join(lines) or "nothing of speechbrain's trainer is in this file"


def port(text: str, path: str = "train.py") -> PortReport:
    r"""See what of a file carries over, and change its imports.

    Args:
        text: the file.
        path: its name: a ``.yaml`` is an hparams file, whose tags are listed, all else is Python.

    Raises:
        ValueError: it is no Python.

    >>> print(port("import speechbrain as sb\nclass B(sb.Brain): pass\nloss = sb.nnet.losses.nll_loss\n"))
    carries over
      line 1: import speechbrain as sb
      line 2: speechbrain.Brain
    stays speechbrain's, which has to be installed
      line 3: speechbrain.nnet.losses.nll_loss
    """
    if Path(path).suffix in (".yaml", ".yml"):
        return _port_hparams(text)
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise ValueError(f"{path}, line {error.lineno}: this is no Python ({error.msg})") from error
    return _Porting(text, tree).report


class _Porting:
    """One pass over a script: imports, then what stands behind the names they gave."""

    def __init__(self, text: str, tree: ast.Module) -> None:
        self.report = PortReport(text)
        self._names: dict[str, str] = {}  # of a module, by the name it goes by in the script
        self._changes: list[tuple[ast.stmt, str]] = []
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                self._import(node)
            elif isinstance(node, ast.ImportFrom):
                self._import_from(node)
        for node, name in _chains(tree):
            self._use(node, name)
        for node in ast.walk(tree):
            self._told(node)
        self._write()

    def _import(self, node: ast.Import) -> None:
        theirs = [each for each in node.names if each.name.partition(".")[0] == _PACKAGE]
        if not theirs:
            return
        spelled = ast.unparse(node)
        alias = theirs[0]
        if len(node.names) > 1:
            self.report.left.append((node.lineno, f"{spelled}: give each module a line of its own"))
        elif alias.name == _PACKAGE:
            self._change(node, f"import {_OURS}{_PACKAGE} as {alias.asname or _PACKAGE}")
        elif alias.asname and (alias.name in SPEECHBRAIN or alias.name in _PACKAGES):
            self._change(node, f"import {_OURS}{alias.name} as {alias.asname}")
        elif alias.asname:
            self.report.kept.append((node.lineno, spelled))
        else:
            self.report.left.append(
                (node.lineno, f"{spelled}: it makes the name speechbrain the real one; write `import ... as`")
            )
        for each in theirs:
            self._names[each.asname or _PACKAGE] = each.name if each.asname else _PACKAGE

    def _import_from(self, node: ast.ImportFrom) -> None:
        module = node.module or ""
        if module == "hyperpyyaml" and not node.level:
            names = [each.name for each in node.names]
            known = {"load_hyperpyyaml", "dump_hyperpyyaml"}
            if set(names) <= known:
                self._change(node, _from(f"{_OURS}hyperpyyaml", node.names))
            else:
                absent = ", ".join(sorted(set(names) - known))
                self.report.left.append((node.lineno, f"{ast.unparse(node)}: there is no {absent}"))
            return
        if module.partition(".")[0] != _PACKAGE or node.level:
            return
        ours: list[ast.alias] = []
        theirs: list[ast.alias] = []
        for each in node.names:
            full = f"{module}.{each.name}"
            if each.name == "*":
                self.report.left.append((node.lineno, f"{ast.unparse(node)}: name what you use"))
                return
            if full in SPEECHBRAIN or full in _PACKAGES:
                self._names[each.asname or each.name] = full
                ours.append(each)
            elif each.name in SPEECHBRAIN.get(module, ()):
                ours.append(each)
            elif module in _TRAINER:
                self.report.left.append(
                    (node.lineno, f"{full} is not there; it stays speechbrain's, and may lean on its trainer")
                )
                theirs.append(each)
            else:
                self.report.kept.append((node.lineno, full))
                theirs.append(each)
        if ours:
            parts = [_from(f"{_OURS}{module}", ours)] + ([_from(module, theirs)] if theirs else [])
            self._change(node, ("\n" + " " * node.col_offset).join(parts))

    def _use(self, node: ast.AST, name: str) -> None:
        """What a dotted name stands for, and whether brainlib has it."""
        first, _, rest = name.partition(".")
        if first not in self._names or not rest:
            return
        full = f"{self._names[first]}.{rest}"
        parts = full.split(".")
        line = getattr(node, "lineno", 0)
        for cut in range(len(parts), 0, -1):
            module = ".".join(parts[:cut])
            if module in SPEECHBRAIN and cut < len(parts):
                if parts[cut] in SPEECHBRAIN[module]:
                    self.report.carried.append((line, ".".join(parts[: cut + 1])))
                elif module in _TRAINER:
                    self.report.left.append(
                        (line, f"{full} is not there: docs/porting.md says what there is instead")
                    )
                else:
                    break
                return
        self.report.kept.append((line, full))

    def _told(self, node: ast.AST) -> None:
        name = line = None
        if isinstance(node, ast.FunctionDef):
            name, line = node.name, node.lineno
        elif isinstance(node, ast.Call):
            func = node.func
            name = (
                func.attr
                if isinstance(func, ast.Attribute)
                else func.id
                if isinstance(func, ast.Name)
                else None
            )
            line = node.lineno
        elif (
            isinstance(node, ast.Attribute)
            and node.attr == "current"
            and _last_of(node.value) == "epoch_counter"
        ):
            name, line = "epoch_counter.current", node.lineno
        elif isinstance(node, ast.Attribute) and node.attr == "train_sampler":
            self.report.differs.append(
                (node.lineno, "train_sampler: every sampler is told the epoch; not needed")
            )
        if name in _DIFFERS and line is not None:
            self.report.differs.append((line, f"{name}: {_DIFFERS[name]}"))

    def _change(self, node: ast.stmt, to: str) -> None:
        self.report.carried.append((node.lineno, ast.unparse(node)))
        self._changes.append((node, to))

    def _write(self) -> None:
        lines = self.report.text.splitlines(keepends=True)
        for node, to in sorted(self._changes, key=lambda each: -each[0].lineno):
            first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
            before = lines[first].encode()[: node.col_offset].decode()
            behind = lines[last].encode()[node.end_col_offset :].decode()
            if before.strip() or behind.strip().startswith(";"):
                self.report.left.append((node.lineno, f"{ast.unparse(node)}: give it a line of its own"))
                continue
            lines[first : last + 1] = [before + to + behind]
        self.report.text = "".join(lines)


def _last_of(node: ast.expr) -> str | None:
    """The last of the names of an attribute; the name itself, of a name."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else None


def _from(module: str, names: list[ast.alias]) -> str:
    spelled = (f"{each.name} as {each.asname}" if each.asname else each.name for each in names)
    return f"from {module} import {', '.join(spelled)}"


def _chains(tree: ast.Module) -> Iterator[tuple[ast.AST, str]]:
    """The longest dotted names: ``sb.nnet.losses`` once, and not ``sb.nnet`` inside of it."""
    inner: set[int] = set()
    for node in ast.walk(tree):  # what contains comes first
        if isinstance(node, ast.Attribute):
            if id(node) in inner:
                continue
            parts: list[str] = []
            below: ast.expr = node
            while isinstance(below, ast.Attribute):
                parts.append(below.attr)
                inner.add(id(below))
                below = below.value
            if isinstance(below, ast.Name):
                yield node, ".".join([below.id, *reversed(parts)])


_TAG = re.compile(r"!(?:new|name|apply|applyref|module):(speechbrain(?:\.\w+)*)")


def _port_hparams(text: str) -> PortReport:
    report = PortReport(text)
    known = aliases_of("speechbrain") or {}
    for number, line in enumerate(text.splitlines(), 1):
        code = line.partition(" #")[0] if not line.lstrip().startswith("#") else ""
        for name in _TAG.findall(code):
            module, _, last = name.rpartition(".")
            if name in known:
                report.carried.append((number, name))
                if last in _DIFFERS:
                    report.differs.append((number, f"{last}: {_DIFFERS[last]}"))
            elif module in _TRAINER:
                report.left.append(
                    (number, f"{name} is not there: docs/porting.md says what there is instead")
                )
            else:
                report.kept.append((number, name))
        key = code.strip().partition(":")[0]
        if key in ("max_grad_norm",):
            report.differs.append((number, f"{key}: {_DIFFERS[key]}"))
    return report
