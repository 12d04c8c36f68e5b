"""What wandb keeps for a whole process, where it is installed: a service, with threads of its own."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def _service_of_wandb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Started before the first test, so that no test is said to have left it behind."""
    if importlib.util.find_spec("wandb") is None:
        yield
        return
    import wandb

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_ERROR_REPORTING", "false")
        wandb.init(
            mode="offline", dir=tmp_path_factory.mktemp("wandb"), settings=wandb.Settings(silent=True)
        ).finish()
        yield
        wandb.teardown()
