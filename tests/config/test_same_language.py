"""Files that the library hyperpyyaml reads right are read the same here: one language, two readers."""

from __future__ import annotations

import functools
import io
import typing

import pytest
import torch

from brainlib.config import dump_hyperpyyaml, load_hyperpyyaml, resolve_hyperpyyaml

hyperpyyaml = pytest.importorskip("hyperpyyaml")

FILES = {
    "words": "a: 1\nb: 0.5\nc: text\nd: true\ne: null\nf: 'x'\ng: \"y\"\nh: [1, a, 2.5]\ni: {x: 1}\nj: 1e-4\nk: -3\n",
    "blocks": "a: |\n  two\n  lines\n# comment\nb: >\n  folded\n  text\n\n  more\nc: plain\n  on\nd: >-\n  x\n  y\n",
    "references": "out: res\nseed: 3\na: !ref <out>/<seed>\nb: !ref <seed>\nc: !ref <d[e][f]>\nd: {e: {f: 5}}\n",
    "chains": "a: !ref <b>/x\nb: !ref <c>\nc: 3\nd: !ref <c>/y\n",
    "arithmetic": "a: 6\nb: !ref <a> * 2\nc: !ref <a> + <b> - 1\nd: !ref <a> / 4\ne: !ref <a> // 4\n"
    "f: !ref <a> ** 2 % 5\ng: !ref (<a> + 1) * 2\nh: !ref <a>*2\n",
    "texts": "a: 6\nb: !ref x<a>y\nc: !ref <a>.wav\nd: !ref <a>x<a>\n",
    "tuples": "a: (1, 2)\nb: (x, 1.5, true)\nc: '(1, 2)'\n",
    "objects": "a: 3\nb: !new:collections.Counter\n  x: !ref <a>\nc: !new:collections.deque [[1, 2], 3]\nd: !ref <b>\n"
    "e: !copy <b>\nf: {g: !new:collections.OrderedDict }\n",
    "names": "a: !name:collections.Counter\nb: !name:sorted\n  reverse: true\nc: !module:math\n"
    "d: !name:torch.float32\n",
    "calls": "a: !apply:divmod [7, 2]\nb: !apply:sorted [[3, 1]]\nc: !applyref:sorted\n  _args:\n    - [1, 3]\n"
    "  _kwargs:\n    reverse: true\n",
    "attributes": "a: !new:fractions.Fraction [3, 4]\nb: !ref <a.numerator>\n",
    "anchors": "a: &x {k: 1}\nb: *x\nc:\n  <<: *x\n  z: 2\n",
    "hidden": "__a: 1\nb: !ref <__a>\n",
    "models": "width: 4\nmodel: !new:torch.nn.Sequential\n  - !new:torch.nn.Linear\n    in_features: !ref <width>\n"
    "    out_features: !ref <width> * 2\n  - !new:torch.nn.ReLU\nopt: !name:torch.optim.SGD\n  lr: 0.1\n",
}


def plain(value: typing.Any) -> typing.Any:
    """A value in a form that can be compared: two modules, or two partials, are never equal."""
    if isinstance(value, functools.partial):
        return ("partial", value.func, value.args, value.keywords)
    if isinstance(value, torch.nn.Module):
        return (type(value).__name__, repr(value))
    if isinstance(value, dict):
        return (type(value).__name__, [(key, plain(each)) for key, each in value.items()])
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, [plain(each) for each in value])
    return (type(value).__name__, value)


@pytest.mark.parametrize("name", FILES)
def test_two_readers_agree(name: str) -> None:
    text = FILES[name]
    assert plain(load_hyperpyyaml(text)) == plain(hyperpyyaml.load_hyperpyyaml(text))


@pytest.mark.parametrize(
    ("text", "overrides"),
    [
        ("a: 1\nb: !ref <a> * 2\n", {"a": 4}),
        ("a: 1\nb: !ref <a> * 2\n", "a: 4"),
        ("x: {a: 1, b: 2}\n", {"x": {"a": 3}}),
        ("x: !new:collections.Counter\n  a: 1\n", {"x": {"a": 3}}),
        ("x: !PLACEHOLDER\n", {"x": [1, "two"]}),
        ("x: 1\n", "x: !new:collections.Counter"),
    ],
)
def test_two_readers_agree_on_overrides(text: str, overrides: typing.Any) -> None:
    assert plain(load_hyperpyyaml(text, overrides)) == plain(
        hyperpyyaml.load_hyperpyyaml(io.StringIO(text), overrides)
    )


def test_a_process_in_which_hyperpyyaml_loads_files_too() -> None:
    """It teaches all of ruamel that "(…)" is a tuple; that changes neither what is read here nor what is written."""
    hyperpyyaml.load_hyperpyyaml("a: (1, 2)\n")
    text = "a: (1, 2)\nb: (a) and (b)\nc: '(1, 2)'\nd: 2024-01-02\n"
    expected = {"a": (1, 2), "b": "(a) and (b)", "c": "(1, 2)", "d": "2024-01-02"}
    assert load_hyperpyyaml(text) == expected
    assert resolve_hyperpyyaml(text) == text
    assert load_hyperpyyaml(dump_hyperpyyaml(expected)) == expected
