"""What `mkdocs` is told besides mkdocs.yml: the pages that stand outside docs/, and one page of the API a room.

A page keeps its place in the repository, where its links hold too. Here it gets a place in the site, and its links are
turned: to the page of the site where there is one, and to the bare name of the file where it is a file of the code. A
tutorial is shown as it is committed: its texts and its code, without what it prints and draws.
"""

from __future__ import annotations

import ast
import json
import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent

OUTSIDE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "benchmarks/README.md": "benchmarks.md",
    "tutorials/README.md": "tutorials.md",
}
DOORS = ("brainlib/__init__.py", "brainlib/audio/__init__.py")
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#\s]*)(#[^)\s]*)?\)")


def places() -> dict[str, str]:
    """For each page its file in the repository, and its place in the site."""
    recipes = {
        path.relative_to(ROOT).as_posix(): f"recipes/{path.parent.name}.md"
        for path in sorted(ROOT.glob("recipes/*/README.md"))
    }
    tutorials = {
        path.relative_to(ROOT).as_posix(): f"tutorials/{path.stem}.md"
        for path in sorted(ROOT.glob("tutorials/[0-9]*.ipynb"))
    }
    inside = {f"docs/{path.name}": path.name for path in sorted(ROOT.glob("docs/*.md"))}
    images = {
        path.relative_to(ROOT).as_posix(): path.relative_to(ROOT / "docs").as_posix()
        for path in sorted(ROOT.glob("docs/images/*"))
    }
    return {**OUTSIDE, **recipes, **tutorials, **inside, **images}


def text_of(source: str) -> str:
    """The page that a file of the repository is: Markdown as it stands, of a notebook its cells."""
    text = (ROOT / source).read_text(encoding="utf-8")
    if not source.endswith(".ipynb"):
        return text
    cells = [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(text)["cells"]]
    parts = [f"```python\n{code}\n```" if kind == "code" else code for kind, code in cells]
    title, _, rest = parts[0].partition("\n")
    note = (
        f"*The notebook `{source}`, without what it prints and draws. [How to run it](README.md) yourself.*"
    )
    return "\n\n".join([title, note, rest.strip(), *parts[1:]]) + "\n"


def public_names() -> dict[str, list[str]]:
    """The public names by the room they live in, as ``brainlib/__init__.py`` and the door to audio import them."""
    trees = [ast.parse((ROOT / door).read_text()) for door in DOORS]
    rooms: dict[str, list[str]] = {}
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.ImportFrom) and node.module:
            parts = node.module.split(".")
            room = parts[1] if len(parts) > 1 else parts[0]
            rooms.setdefault(room, []).extend(f"{node.module}.{alias.name}" for alias in node.names)
    return dict(sorted(rooms.items()))


def on_config(config: Any) -> Any:
    """Fills in the lists of recipes, of tutorials and of the API, so that a new one needs no line in mkdocs.yml."""
    lists = {
        "recipes": [place for place in places().values() if place.startswith("recipes/")],
        "tutorials": [place for place in places().values() if place.startswith("tutorials")],
        "api": [{room: f"api/{room}.md"} for room in public_names()],
    }
    config["nav"] = [
        {title: lists.get(entry, entry) if isinstance(entry, str) else entry for title, entry in item.items()}
        for item in config["nav"]
    ]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages from outside docs/ and those of the API."""
    for source, place in places().items():
        if not source.startswith("docs/"):
            files.append(File.generated(config, place, content=text_of(source)))
    for room, names in public_names().items():
        text = f"# brainlib: {room}\n\n" + "\n\n".join(f"::: {name}" for name in names) + "\n"
        files.append(File.generated(config, f"api/{room}.md", content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Turns the links of a page from its place in the repository to its place in the site."""
    by_place = {place: source for source, place in places().items()}
    place = page.file.src_uri
    if place not in by_place:
        return markdown
    folder = Path(by_place[place]).parent

    def turned(found: re.Match[str]) -> str:
        picture, text, target, anchor = found[1], found[2], found[3], found[4] or ""
        if not target or "://" in target:
            return found[0]
        source = os.path.normpath(folder / target)
        if not (ROOT / source).exists():
            raise FileNotFoundError(f"{by_place[place]} has a link to {target!r}, and there is no {source}")
        here = Path(source).as_posix()
        if (to := places().get(here) or places().get(f"{here}/README.md")) is None:
            return text if text.startswith("`") else f"{text} (`{here}`)"
        return f"{picture}[{text}]({os.path.relpath(to, Path(place).parent)}{anchor})"

    parts = re.split(r"(^```.*?^```)", markdown, flags=re.MULTILINE | re.DOTALL)  # code is left alone
    return "".join(part if part.startswith("```") else LINK.sub(turned, part) for part in parts)
