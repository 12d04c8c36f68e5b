"""Extensions: everything that hangs on the loop and is not the loop.

An extension is told when a fit starts, is called when its trigger says so, hears of an error, and is closed
in the end. What it remembers is saved with the run. The loop itself stays small; reading it does not need
this file.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from types import EllipsisType
from typing import Any, overload

from brainlib.common.errors import nearest, quoted
from brainlib.common.logs import logger
from brainlib.triggers import Trigger, TriggerSpec, as_trigger

__all__ = ["Extension", "Extensions", "FunctionExtension", "make_extension"]

Hook = Callable[[Any], object]
ErrorHook = Callable[[Any, BaseException], object]


class Extension:
    """Something that is called now and then during `fit`. Override what you need; each part is a working
    no-op.

    ``brain`` is typed Any in the hooks, so that a subclass may name its own Brain there.

    Args:
        name: what it is called in the checkpoint; the name of the class by default. Two extensions of one
            class need two names.
        trigger: when it is called, as `as_trigger` takes it: ``(n, "epoch" | "step" | "seconds")``, a
            function of the Brain, a `Trigger`, or None for never. The class attribute by default: after every
            update.
        priority: the higher is called first; among equals, the order in which they were given. Those that
            write values take 300, those that change them 200, those that only read 100 (the default), what
            saves the run below 0.

    A subclass may set the three as class attributes instead, and need not call ``super().__init__``. One that only
    looks on and has nothing to remember sets ``kept = False``: a checkpoint then knows nothing of it, and it may come
    and go.

    Example:
        >>> class Count(Extension):
        ...     trigger = (10, "step")
        ...     total = 0
        ...     def __call__(self, brain):
        ...         self.total += 1
        ...     def state_dict(self):
        ...         return {"total": self.total}
        ...     def load_state_dict(self, state):
        ...         self.total = state["total"]
        >>> [extension.priority for extension in (Count(), Count(name="second", priority=200))]
        [100, 200]
    """

    trigger: TriggerSpec = (1, "step")
    priority: int = 100
    name: str | None = None
    kept: bool = True  # whether its state, and that of its trigger, are part of a checkpoint

    def __init__(
        self,
        *,
        name: str | None = None,
        trigger: TriggerSpec | EllipsisType = ...,
        priority: int | None = None,
    ) -> None:
        if name is not None:
            self.name = name
        if not isinstance(trigger, EllipsisType):  # None is a trigger: never
            self.trigger = trigger
        if priority is not None:
            self.priority = priority

    def start(self, brain: Any) -> None:
        """A fit starts, or goes on after a restart with the state already loaded."""

    def __call__(self, brain: Any) -> None:
        """The trigger is due."""

    def evaluating(self, brain: Any, stage: Any) -> AbstractContextManager[None]:
        """A context round the batches of a validation or evaluation. It is left before ``on_stage_end``, so that what
        the hook saves are the weights of the run.
        """
        return nullcontext()

    def on_error(self, brain: Any, exc: BaseException) -> None:
        """The fit ends with `exc`, which is raised again afterwards. Also Ctrl-C and SystemExit come here."""

    def close(self, brain: Any) -> None:
        """The fit is over, well or not: release files, threads and the like."""

    def state_dict(self) -> dict[str, Any]:
        """What has to survive a restart. Tensors and plain values only."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put back what `state_dict` returned."""
        if state:
            name, keys = self.name or type(self).__name__, quoted(sorted(map(str, state)))
            raise ValueError(
                f"the saved state of the extension {name!r} has the keys {keys}, but "
                f"{type(self).__name__} reads none. If it should, define load_state_dict."
            )


class FunctionExtension(Extension):
    """An extension made of functions; see `make_extension`.

    Args:
        function: called with the Brain when the trigger is due.
        start: called with the Brain at the start of a fit.
        on_error: called with the Brain and the error.
        close: called with the Brain at the end of a fit.
        name: the name of `function` by default.
        trigger: when it is called; after every update by default.
        priority: the higher is called first; 100 by default.

    Example:
        >>> FunctionExtension(print, trigger=(1, "epoch")).name
        'print'
    """

    def __init__(
        self,
        function: Hook,
        *,
        start: Hook | None = None,
        on_error: ErrorHook | None = None,
        close: Hook | None = None,
        name: str | None = None,
        trigger: TriggerSpec | EllipsisType = ...,
        priority: int | None = None,
    ) -> None:
        name = name or getattr(function, "__name__", type(function).__name__)
        if name == "<lambda>":
            raise ValueError("a lambda has no name to save its state under: pass name='...'")
        super().__init__(name=name, trigger=trigger, priority=priority)
        self.function = function
        self._start, self._on_error, self._close = start, on_error, close

    def start(self, brain: Any) -> None:
        """Call the function given as `start`, if one was."""
        if self._start is not None:
            self._start(brain)

    def __call__(self, brain: Any) -> None:
        """Call the function."""
        self.function(brain)

    def on_error(self, brain: Any, exc: BaseException) -> None:
        """Call the function given as `on_error`, if one was."""
        if self._on_error is not None:
            self._on_error(brain, exc)

    def close(self, brain: Any) -> None:
        """Call the function given as `close`, if one was."""
        if self._close is not None:
            self._close(brain)


@overload
def make_extension(function: Hook, /) -> FunctionExtension: ...
@overload
def make_extension(
    *,
    trigger: TriggerSpec = ...,
    name: str | None = ...,
    priority: int = ...,
    start: Hook | None = ...,
    on_error: ErrorHook | None = ...,
    close: Hook | None = ...,
) -> Callable[[Hook], FunctionExtension]: ...
def make_extension(
    function: Hook | None = None,
    /,
    *,
    trigger: TriggerSpec = Extension.trigger,
    name: str | None = None,
    priority: int = Extension.priority,
    start: Hook | None = None,
    on_error: ErrorHook | None = None,
    close: Hook | None = None,
) -> FunctionExtension | Callable[[Hook], FunctionExtension]:
    """Turn a function of the Brain into an extension: a decorator, with or without arguments.

    Args:
        function: what is called when the trigger is due.
        trigger: when; after every update by default.
        name: the name of the function by default.
        priority: the higher is called first.
        start: called with the Brain at the start of a fit.
        on_error: called with the Brain and the error.
        close: called with the Brain at the end of a fit.

    Example:
        >>> @make_extension(trigger=(1, "epoch"))
        ... def tell(brain):
        ...     print("an epoch is over")
        >>> tell(None)
        an epoch is over
        >>> tell.name, tell.trigger
        ('tell', (1, 'epoch'))
    """

    def make(function: Hook) -> FunctionExtension:
        return FunctionExtension(
            function,
            start=start,
            on_error=on_error,
            close=close,
            name=name,
            trigger=trigger,
            priority=priority,
        )

    return make if function is None else make(function)


class Extensions:
    """The extensions of one Brain, in the order in which they are called.

    Args:
        items: instances of `Extension`.

    Raises:
        ValueError: for two of one name, one trigger object in two places, and what is no extension.

    Example:
        >>> @make_extension(trigger=(1, "epoch"))
        ... def plot(brain): ...
        >>> extensions = Extensions([plot])
        >>> [extension.name for extension in extensions], bool(Extensions())
        (['plot'], False)
    """

    def __init__(self, items: Iterable[Extension] = ()) -> None:
        self._items: dict[str, tuple[Extension, Trigger]] = {}
        owners: dict[int, str] = {}
        for place, extension in enumerate(items):
            name = _name_of(extension, place)
            if name in self._items:
                raise ValueError(
                    f"two extensions are called {name!r}, so their state could not be told apart. Give one "
                    f"of them another name: {type(extension).__name__}(..., name='{name}-2'), or set its "
                    "attribute `name`."
                )
            try:
                trigger = as_trigger(extension.trigger)
            except ValueError as error:
                raise ValueError(f"the extension {name!r}: {error}") from error
            if trigger is extension.trigger and owners.setdefault(id(trigger), name) != name:
                raise ValueError(
                    f"the extensions {owners[id(trigger)]!r} and {name!r} have the same trigger object, "
                    f"{trigger!r}. It remembers what it saw, so the second would never be called: give each "
                    "its own."
                )
            self._items[name] = (extension, trigger)
        # `sorted` is stable: among equal priorities the order given.
        self._items = dict(sorted(self._items.items(), key=lambda item: -item[1][0].priority))
        self.firing = False  # whether one of them is being called

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Extension]:
        return (extension for extension, _ in self._items.values())

    def __getitem__(self, name: str) -> Extension:
        if name not in self._items:
            raise KeyError(
                f"no extension is called {name!r}; there are "
                f"{quoted(self._items)}.{nearest(name, self._items)}"
            )
        return self._items[name][0]

    def start(self, brain: Any) -> None:
        """A fit starts: triggers look where it stands, extensions open what they need."""
        for extension, trigger in self._items.values():
            trigger.start(brain)
            extension.start(brain)

    def fire(self, brain: Any) -> None:
        """Call those that are due. Called after every batch and after every closed epoch.

        A trigger counts as fired before its extension runs, so that one which saves the run is not due again
        in what it saved; those after it have not been asked yet, and are made up for after a restart.
        """
        for extension, trigger in self._items.values():
            if trigger(brain):
                self.firing = True
                try:
                    extension(brain)
                finally:
                    self.firing = False

    @contextmanager
    def evaluating(self, brain: Any, stage: Any) -> Iterator[None]:
        """Inside, the batches of a validation or evaluation are computed."""
        with ExitStack() as stack:
            for extension in self:
                stack.enter_context(extension.evaluating(brain, stage))
            yield

    def on_error(self, brain: Any, exc: BaseException) -> None:
        """Tell all of an error that ends the fit. The caller raises it again; an error in here is only
        logged.
        """
        self._call_all("on_error", lambda extension: extension.on_error(brain, exc))

    def close(self, brain: Any) -> None:
        """Close all, whatever happens to one of them.

        An error in here is logged with its traceback. The first is raised in the end, unless another error is
        already on its way up: that one is what the user has to see.
        """
        on_its_way = sys.exc_info()[0] is not None
        failures = self._call_all("close", lambda extension: extension.close(brain))
        if failures and not on_its_way:
            raise failures[0]

    def _call_all(self, hook: str, call: Callable[[Extension], None]) -> list[Exception]:
        failures: list[Exception] = []
        for name, (extension, _) in self._items.items():
            try:
                call(extension)
            except Exception as error:  # noqa: BLE001 - the others must be called, and the first error must stay the first
                logger.exception("the extension %r failed in %s", name, hook)
                failures.append(error)
        return failures

    def state_dict(self) -> dict[str, dict[str, Any]]:
        """The state of every extension and of its trigger, by name."""
        return {
            name: {
                "trigger": {"kind": type(trigger).__name__, "state": trigger.state_dict()},
                "state": extension.state_dict(),
            }
            for name, (extension, trigger) in self._kept().items()
        }

    def _kept(self) -> dict[str, tuple[Extension, Trigger]]:
        return {name: item for name, item in self._items.items() if item[0].kept}

    def load_state_dict(self, state: dict[str, dict[str, Any]]) -> None:
        """Put back what `state_dict` returned.

        An extension that is new starts afresh, with a warning, and so does a trigger that has become one of
        another kind. An extension that is saved and no longer there is an error.

        Raises:
            ValueError: when `state` holds a name that no extension has; nothing is loaded then.
        """
        if gone := state.keys() - self._items.keys():
            raise ValueError(
                f"the checkpoint holds the state of the extensions {quoted(sorted(gone))}, which this Brain "
                f"does not have; it has {quoted(sorted(self._items))}. Add them again (with trigger=None, "
                "they are never called), or name the new ones as the old."
            )
        for name, entry in state.items():
            if entry.keys() != {"trigger", "state"}:
                raise ValueError(
                    f"the saved state of the extension {name!r} has the keys {quoted(sorted(entry))}, not "
                    "'state', 'trigger'"
                )
        if new := [name for name in self._kept() if name not in state]:
            logger.warning(
                "the checkpoint knows nothing of the extensions %s: they start afresh", quoted(new)
            )
        for name, entry in state.items():
            extension, trigger = self._items[name]
            if not extension.kept:
                continue  # of before it only looked on
            if entry["trigger"]["kind"] == type(trigger).__name__:
                trigger.load_state_dict(entry["trigger"]["state"])
            extension.load_state_dict(entry["state"])


def _name_of(extension: Any, place: int) -> str:
    if not isinstance(extension, Extension):
        if isinstance(extension, type) and issubclass(extension, Extension):
            hint = f"Pass an instance: {extension.__name__}()."
        elif callable(extension):
            hint = "Decorate the function with @make_extension(trigger=...)."
        else:
            hint = "Subclass brainlib.Extension, or decorate a function with @make_extension(trigger=...)."
        raise ValueError(f"extensions[{place}] is {extension!r}, which is no extension. {hint}")
    return extension.name or type(extension).__name__
