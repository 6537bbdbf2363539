"""Fixtures for tests of searches."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def has_common_session() -> bool:
    return True
