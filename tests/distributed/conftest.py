"""One warm host for all tests of several processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.distributed.host import Host


@pytest.fixture(scope="session")
def host() -> Iterator[Host]:
    with Host() as started:
        yield started
