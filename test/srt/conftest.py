"""One unified server for all tests on real workers: each module's own would cost a third of its start."""

import pytest

import handoff_stack as hs
from rig import stack


@pytest.fixture(scope="session")
def oracle():
    with stack.unified() as server:
        yield hs.Oracle(server)
