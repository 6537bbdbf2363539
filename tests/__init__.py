"""The tests."""

import pytest

pytest.register_assert_rewrite("hocket.testing.suites")  # a failure in the suite for engines says what it saw
