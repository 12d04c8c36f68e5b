"""What of a script or an hparams file written for speechbrain carries over. Files are read, nothing of them is run."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from brainlib.brain import names_for_itself
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
_BRAINS = frozenset({"speechbrain.Brain", "speechbrain.core.Brain"})
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
    "torch.manual_seed": "it seeds torch alone, and what numpy and random draw is another at each start; "
    "brainlib.seed_everything seeds all three",
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
        looked_up: whether speechbrain is installed, so that what stays is known to be there.

    >>> print(PortReport("", carried=[(1, "speechbrain.core.Brain")]))
    carries over
      line 1: speechbrain.core.Brain
    """

    text: str
    carried: list[tuple[int, str]] = field(default_factory=list)
    kept: list[tuple[int, str]] = field(default_factory=list)
    differs: list[tuple[int, str]] = field(default_factory=list)
    left: list[tuple[int, str]] = field(default_factory=list)
    looked_up: bool = True

    def keep(self, line: int, name: str, spelled: str = "") -> None:
        """What stays speechbrain's, or is left where the installed one does not have it."""
        missing = _missing(name) if self.looked_up else None
        if missing is None:
            self.kept.append((line, spelled or name))
        else:
            self.left.append((line, f"{spelled or name}: the installed speechbrain has no {missing}"))

    def __str__(self) -> str:
        lines: list[str] = []
        for title, found in (
            ("carries over", self.carried),
            (
                "stays speechbrain's, which has to be installed"
                + (" (it is not here, so whether it has these was not looked up)" * (not self.looked_up)),
                self.kept,
            ),
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

    What stays speechbrain's is looked up in the files of an installed one.

    Args:
        text: the file.
        path: its name: a ``.yaml`` is an hparams file, whose tags are listed, all else is Python.

    Raises:
        ValueError: it is no Python.

    >>> print(port("import speechbrain as sb\nclass B(sb.Brain): pass\nloss = sb.nnet.losses.nll_loss\n"))
    ... # doctest: +ELLIPSIS
    carries over
      line 1: import speechbrain as sb
      line 2: speechbrain.Brain
    stays speechbrain's, which has to be installed...
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
        self.report = PortReport(text, looked_up=_installed() is not None)
        self._names: dict[str, str] = {}  # of a module, by the name it goes by in the script
        self._brains: set[str] = set()  # names of Brain and of the script's own classes made from it
        self._changes: list[tuple[ast.stmt, str, str]] = []
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                self._import(node)
            elif isinstance(node, ast.ImportFrom):
                self._import_from(node)
        for node, name in _chains(tree):
            self._use(node, name)
        for node in ast.walk(tree):
            self._told(node)
            if isinstance(node, ast.ClassDef):
                self._class(node)
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
            self.report.keep(node.lineno, alias.name, spelled)
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
            if full in _BRAINS:
                self._brains.add(each.asname or each.name)
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
                self.report.keep(node.lineno, full)
                theirs.append(each)
        if ours:
            parts = [_from(f"{_OURS}{module}", ours)] + ([_from(module, theirs)] if theirs else [])
            self._change(node, ("\n" + " " * node.col_offset).join(parts), _from(module, ours))

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
        self.report.keep(line, full)

    def _class(self, node: ast.ClassDef) -> None:
        """What a Brain of the script defines that ours cannot do without."""
        if not any(self._is_brain(base) for base in node.bases):
            return
        self._brains.add(node.name)
        for each in node.body:
            targets = [each.target] if isinstance(each, ast.AnnAssign) else getattr(each, "targets", [])
            for name in [getattr(each, "name", None), *map(_last_of, targets)]:
                if name in names_for_itself():
                    self.report.left.append(
                        (
                            each.lineno,
                            f"{node.name}.{name}: Brain needs this name for itself, and refuses a class that defines "
                            "it: take another name, or do in a hook or in fit_batch what it does",
                        )
                    )

    def _is_brain(self, base: ast.expr) -> bool:
        if isinstance(base, ast.Name):
            return base.id in self._brains
        first, _, rest = ast.unparse(base).partition(".")
        return f"{self._names.get(first)}.{rest}" in _BRAINS

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
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.manual_seed":
            name = "torch.manual_seed"
        if name in _DIFFERS and line is not None:
            self.report.differs.append((line, f"{name}: {_DIFFERS[name]}"))

    def _change(self, node: ast.stmt, to: str, what: str = "") -> None:
        """Note a statement, and `what` of it carries over: all of it by default."""
        self._changes.append((node, to, what or ast.unparse(node)))

    def _write(self) -> None:
        lines = self.report.text.splitlines(keepends=True)
        for node, to, what in sorted(self._changes, key=lambda each: -each[0].lineno):
            first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
            before = lines[first].encode()[: node.col_offset].decode()
            behind = lines[last].encode()[node.end_col_offset :].decode()
            if before.strip() or behind.strip().startswith(";"):
                self.report.left.append((node.lineno, f"{ast.unparse(node)}: give it a line of its own"))
                continue
            lines[first : last + 1] = [before + to + behind]
            self.report.carried.append((node.lineno, what))
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


def _installed() -> Path | None:
    """The folder of the installed speechbrain; nothing of it is imported."""
    found = importlib.util.find_spec(_PACKAGE)
    places = list(found.submodule_search_locations or []) if found is not None else []
    return Path(places[0]) if places else None


def _missing(name: str) -> str | None:
    """The first part of a dotted name of speechbrain's for which its files have no module and no name."""
    place = _installed()
    assert place is not None
    parts = name.split(".")
    for number, part in enumerate(parts[1:], 2):
        if (place / part / "__init__.py").is_file():
            place = place / part
        elif (place / f"{part}.py").is_file():
            place = place / f"{part}.py"
        else:
            file = place / "__init__.py" if place.is_dir() else place
            names = _names_in(file)
            return None if names is None or part in names else ".".join(parts[:number])
    return None


def _names_in(file: Path) -> set[str] | None:
    """What a module may hold: every name that it defines, imports or assigns; None where it makes them itself."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names.update(each.asname or each.name.partition(".")[0] for each in node.names)
    return None if names & {"*", "__getattr__"} else names


_TAG = re.compile(r"!(?:new|name|apply|applyref|module):(speechbrain(?:\.\w+)*)")


def _port_hparams(text: str) -> PortReport:
    report = PortReport(text, looked_up=_installed() is not None)
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
                report.keep(number, name)
        if "!apply:torch.manual_seed" in code:
            report.differs.append((number, f"torch.manual_seed: {_DIFFERS['torch.manual_seed']}"))
        key = code.strip().partition(":")[0]
        if key in ("max_grad_norm",):
            report.differs.append((number, f"{key}: {_DIFFERS[key]}"))
    return report
