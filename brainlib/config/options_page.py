"""Write docs/options.md, the page of all run options: ``python -m brainlib.config.options_page``.

The page is made of the same fields as the options themselves; a test compares it with the file.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from brainlib.common.option_fields import Option, OptionGroup, options_of
from brainlib.options import all_options

__all__ = ["main", "options_page"]

_INTRODUCTION = """# Run options

How a Brain runs, as opposed to what it trains. This page is generated: `python -m brainlib.config.options_page`.

An option may be set in four places. A later one wins:

1. its default;
2. the top level of the hparams file, for the names that SpeechBrain has too (marked ● below);
3. the section `run_opts:` of the hparams file, for all names;
4. `Brain(run_opts={...})`, which is where `parse_arguments` puts what stands on the command line.

```yaml
precision: bf16          # ● works here
run_opts:
    limit_train_batches: 100   # a name of brainlib's own: at the top level it would be a key of yours
```

```text
python train.py hparams.yaml --precision bf16 --limit-train-batches 100 --debug
```

An option has one type whichever way it comes. Booleans are true/false, yes/no, on/off or 1/0, and on the command line
the name alone means true. Dashes and underscores in names are alike; names are never abbreviated. An unknown name in
`run_opts` is an error that names the nearest.

## Trying out beside a real run

With `debug` or `benchmark_max_step` the Brain puts its checkpoints into a temporary place. Logs, results and pictures
are written by the script, and go where it puts them: into the folder of the real run, unless the trial gets one of its
own. One line does that, between the command line and the file:

```python
from pathlib import Path
import brainlib as bl

Path("cnn.yaml").write_text("output_folder: results/cnn\\nsave: !ref <output_folder>/save\\n")

param_file, run_opts, overrides = bl.parse_arguments(["cnn.yaml", "--debug"])  # a script leaves the list away
overrides = bl.set_trial_apart(param_file, run_opts, overrides)
hparams = bl.load_hyperpyyaml(param_file, overrides)
assert hparams["save"] == "results/cnn/debug/save"
```

In a trial `output_folder` is then `<output_folder>/debug` or `<output_folder>/benchmark`, and so is every path that the
file makes of it, as in `!ref <output_folder>/save`; all other runs are as they were. The metrics.jsonl of the trial
before is removed; with `debug_persistently`, whose checkpoints stay, the trial goes on instead.
"""


def options_page() -> str:
    """The text of the page.

    >>> "| `max_grad_norm` ● |" in options_page()
    True
    """
    groups: dict[type[OptionGroup], None] = dict.fromkeys(each.group for each in all_options().values())
    return _INTRODUCTION + "".join(_section(group) for group in groups)


def _section(group: type[OptionGroup]) -> str:
    title = group.__name__.removesuffix("Options")
    summary = (group.__doc__ or "").strip().partition("\n")[0]
    rows = "".join(_row(each) for each in options_of(group))
    head = "| option | takes | default | what it does |\n| --- | --- | --- | --- |\n"
    return f"\n## {title}\n\n{summary}\n\n{head}{rows}"


def _row(option: Option) -> str:
    name = f"`{option.name}`" + ("" if option.ours else " ●")
    return f"| {name} | {option.takes} | `{option.default_in_words}` | {option.help} |\n"


def main(argv: Sequence[str] | None = None) -> None:
    """Write the page to the path given, or to docs/options.md.

    >>> import tempfile, pathlib
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     main([folder + "/options.md"])
    ...     pathlib.Path(folder, "options.md").read_text(encoding="utf-8") == options_page()
    True
    """
    words = list(sys.argv[1:] if argv is None else argv)
    Path(words[0] if words else "docs/options.md").write_text(options_page(), encoding="utf-8")


if __name__ == "__main__":
    main()
