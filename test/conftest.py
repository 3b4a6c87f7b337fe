"""What all tests share: those with real processes run last, because they take minutes; none may hang."""

import pytest

TIMEOUT_S = 300
TIMEOUT_REAL_S = 600  # the start of the servers counts


def pytest_configure(config):
    config.addinivalue_line("markers", "real: starts real servers on this machine")
    config.addinivalue_line("markers", "alone: and needs its two cores: no other test may run beside it")


def _real(item) -> bool:
    return item.get_closest_marker("real") is not None


def pytest_collection_modifyitems(items):
    items.sort(key=_real)
    for item in items:
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT_REAL_S if _real(item) else TIMEOUT_S))
