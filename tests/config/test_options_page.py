from __future__ import annotations

from pathlib import Path

from brainlib.common.option_fields import options_of
from brainlib.config.options_page import main, options_page
from brainlib.options import RunOptions, all_options

PAGE = Path(__file__).parents[2] / "docs" / "options.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == options_page(), "run: python -m brainlib.config.options_page"


def test_the_page_has_every_option_with_its_default() -> None:
    text = options_page()
    for name, option in all_options().items():
        row = next(line for line in text.splitlines() if line.startswith(f"| `{name}`"))
        assert option.takes in row and f"`{option.default_in_words}`" in row and option.help in row
        assert ("●" in row) == (name in RunOptions.speechbrain_names())
    sections = [line for line in text.splitlines() if line.startswith("## ")]
    assert sections[0] == "## Trying out beside a real run"
    assert len(sections) == 1 + len({option.group for option in all_options().values()})
    assert all(options_of(option.group) for option in all_options().values())


def test_writing_the_page(tmp_path: Path) -> None:
    main([str(tmp_path / "page.md")])
    assert (tmp_path / "page.md").read_text(encoding="utf-8") == options_page()
