"""What stands on methods while they are watched goes away again, in whatever order."""

from __future__ import annotations

from itertools import permutations, product

from brainlib.profiling.phases import Phases, Wrappers


class Tea:
    def brew(self) -> str:
        return "tea"


def test_wrappers_go_away_in_any_order() -> None:
    for order, own in product(permutations(range(3)), (False, True)):
        tea = Tea()
        if own:
            tea.brew = lambda: "chai"  # type: ignore[method-assign]
        before, all_of_them = dict(vars(tea)), [Wrappers() for _ in range(3)]
        for wrappers in all_of_them:
            wrappers.put_on(tea, "brew", Phases(), "hooks")
        for number in order:
            assert tea.brew() == ("chai" if own else "tea")
            all_of_them[number].take_off()
        assert vars(tea) == before


def test_what_somebody_has_put_over_a_wrapper_stays() -> None:
    tea, wrappers = Tea(), Wrappers()
    wrappers.put_on(tea, "brew", Phases(), "hooks")
    inner = tea.brew
    tea.brew = lambda: f"hot {inner()}"  # type: ignore[method-assign]
    wrappers.take_off()
    assert tea.brew() == "hot tea"
