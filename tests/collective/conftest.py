"""What tests of collectives share."""

from __future__ import annotations

import pytest

MOST_RANKS = 5
"""How many ranks a test has at most."""


@pytest.fixture(scope="module")
def session_cpus() -> int:
    """One for each rank: then they stay, with what they have imported."""
    return MOST_RANKS
