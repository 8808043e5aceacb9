"""The order of tests for two workers: what shares a server runs on one of them, the longest first.

A file is one group (one worker runs it, so that its fixtures are made once), but for those whose
tests share nothing. Seconds are those of one run; only their order matters, and an absent group
is short.
"""

from __future__ import annotations

import pytest

__all__ = ["arrange"]

SPREAD = ("tests/test_docs.py", "tests/test_examples.py", "tests/test_api_python.py")
"""Files whose tests may run on either worker."""

SECONDS: dict[str, float] = {}


def arrange(items: list[pytest.Item]) -> None:
    """Give each test its group, and sort the groups by how long they take (longest first)."""
    for item in items:
        file = item.nodeid.partition("::")[0]
        if file not in SPREAD and item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(file))
    items.sort(key=lambda item: -SECONDS.get(group_of(item), 0.0))


def group_of(item: pytest.Item) -> str:
    """The name of a test's group; its own where it is alone."""
    mark = item.get_closest_marker("xdist_group")
    return str(mark.args[0]) if mark else item.nodeid
