"""What a user copies must run: the blocks of every page, the examples of every docstring; and links lead somewhere."""

from __future__ import annotations

import doctest
import importlib
import inspect
import linecache
import re
import sys
from pathlib import Path
from types import GenericAlias, ModuleType

import pytest

import brainlib
from tests.known_files import known_files

ROOT = Path(__file__).resolve().parent.parent
PAGES = known_files(
    "*.md", *(f"{folder}/**/*.md" for folder in ("docs", "recipes", "benchmarks", "tutorials"))
)
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in (ROOT / "brainlib").rglob("*.py")
)

BLOCK = re.compile(r"^```python[ \t]*\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)
_PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
_OPTIONAL = _PROJECT.partition("[project.optional-dependencies]")[2].partition("\n[")[
    0
]  # Python 3.10 reads no TOML
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)")


def page_name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_blocks_of_a_page_run_from_top_to_bottom(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One page is one session: a block may use what a block above it defined. ```text is for what is not to be run."""
    monkeypatch.chdir(tmp_path)
    text = page.read_text(encoding="utf-8")
    session = ModuleType(
        "__main__"
    )  # a module, so that classes defined in a block can be pickled and inspected
    monkeypatch.setitem(sys.modules, session.__name__, session)
    linecache.checkcache(str(page))
    for block in BLOCK.finditer(text):
        lines_above = text[: block.start(1)].count("\n")
        code = compile(
            "\n" * lines_above + block[1], str(page), "exec"
        )  # a traceback shows the line of the page
        exec(code, session.__dict__)


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_extras_of_a_page_are_there(page: Path) -> None:
    named = re.findall(r"pip install -e '\.\[([^]]+)\]'", page.read_text(encoding="utf-8"))
    declared = re.findall(r"^(\w+) = \[", _OPTIONAL, re.MULTILINE)
    assert {extra for each in named for extra in each.split(",")} <= set(declared)


def test_the_readme_says_what_brings_jupyter() -> None:
    """`jupyter execute` is of nbclient, which `make demo` does not install."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "nbclient" in _OPTIONAL.partition("\nnotebook = [")[2].partition("]")[0]
    assert text.index("pip install -e '.[notebook,demo]'") < text.index("jupyter execute tutorials/")


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    links = [link for link in LINK.findall(page.read_text(encoding="utf-8")) if ":" not in link]
    missing = [link for link in links if not (page.parent / link).exists()]
    assert not missing, f"{page_name(page)} links to files that do not exist: {', '.join(missing)}"


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_a_module_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module(name)
    monkeypatch.chdir(tmp_path)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    report: list[str] = []
    for test in doctest.DocTestFinder(exclude_empty=True).find(module, name):
        runner.run(test, out=report.append)
    assert not runner.failures, "".join(report)


def test_every_public_name_has_an_example() -> None:
    public = [(name, getattr(brainlib, name)) for name in brainlib.__all__]
    missing = [n for n, thing in public if is_documented(thing) and ">>>" not in (own_docstring(thing) or "")]
    assert not missing, f"public names without an example (>>>) in their docstring: {', '.join(missing)}"


@pytest.mark.parametrize("name", MODULES)
def test_every_exported_name_of_a_module_exists_and_has_a_docstring(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__doc__, f"{name} does not say what it is for"
    missing = [export for export in getattr(module, "__all__", []) if not hasattr(module, export)]
    assert not missing, f"{name}.__all__ names what the module does not have: {', '.join(missing)}"
    things = [(export, getattr(module, export)) for export in getattr(module, "__all__", [])]
    silent = [export for export, thing in things if is_documented(thing) and not own_docstring(thing)]
    assert not silent, f"no docstring in {name}: {', '.join(silent)}"


def is_documented(thing: object) -> bool:
    """Classes and functions are; a constant or an alias such as `list[int]`, which 3.10 takes for a class, is not."""
    return inspect.isroutine(thing) or (inspect.isclass(thing) and not isinstance(thing, GenericAlias))


def own_docstring(thing: object) -> str | None:
    """Its own, not one inherited, and not the signature that a dataclass makes up."""
    doc = thing.__dict__.get("__doc__") if inspect.isclass(thing) else inspect.getdoc(thing)
    if doc and inspect.isclass(thing) and doc.startswith(f"{thing.__name__}("):
        return None
    return doc
