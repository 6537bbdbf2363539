"""Limits that an implementation declares, so that a suite leaves out the tests of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import pytest


class DeclaresLimits:
    """Base of the suites whose implementations say in `limits` what they cannot do.

    A test marked ``needs("ability")`` is skipped where `limits` names the ability. Whoever runs pytest with
    ``--strict-markers`` registers the marker: ``needs(abilities)``.
    """

    limits: ClassVar[Mapping[str, str]] = {}
    """What cannot be done, by the name of the ability, with a sentence that says why."""

    @pytest.fixture(autouse=True)
    def leave_out_what_cannot_be_done(self, request: pytest.FixtureRequest) -> None:
        """Skip a test of what the implementation says that it cannot do."""
        for marker in request.node.iter_markers("needs"):
            for ability in marker.args:
                self.require(ability)

    def require(self, ability: str) -> None:
        """Skip the calling test if the implementation says that it cannot do something."""
        if ability in self.limits:
            pytest.skip(self.limits[ability])
