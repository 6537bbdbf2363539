"""Limits that an implementation declares, so that a suite skips the tests of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import pytest


class DeclaresLimits:
    """The base of suites for implementations that declare the abilities which they lack.

    A test with the marker ``needs("ability")`` is skipped if `limits` names the ability. With pytest's
    ``--strict-markers``, register the marker: ``needs(abilities)``.
    """

    limits: ClassVar[Mapping[str, str]] = {}
    """The missing abilities, by name, each with a sentence that says why."""

    @pytest.fixture(autouse=True)
    def leave_out_what_cannot_be_done(self, request: pytest.FixtureRequest) -> None:
        """Skip a test that needs an ability which the implementation lacks."""
        for marker in request.node.iter_markers("needs"):
            for ability in marker.args:
                self.require(ability)

    def require(self, ability: str) -> None:
        """Skip the calling test if the implementation lacks an ability."""
        if ability in self.limits:
            pytest.skip(self.limits[ability])
