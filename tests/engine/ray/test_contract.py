"""The contract suite on Ray.

All tests share one Ray, which takes seconds to start; a session takes it over, and ends what it started itself.
"""

from collections.abc import Iterator

import pytest

from hocket.engine.ray import connection
from hocket.exceptions import ActorUnavailableError
from hocket.testing import ProcessEngineContract
from hocket.testing.suites.programs import CPUS

pytestmark = pytest.mark.timeout(120)  # a worker of Ray's takes a second to start, and a test may need several


@pytest.fixture(scope="module", autouse=True)
def _started_ray() -> Iterator[None]:
    opened = connection.connect(
        connection.Request(address="local", num_cpus=CPUS, resources={"camera": 1}, options={"include_dashboard": True})
    )
    yield
    opened.close()


class TestRay(ProcessEngineContract):
    engine = "ray"
    cleans_up = False
    race_rounds = 1
    race_calls = 100
    race_losses = (ActorUnavailableError,)  # see the limit `cancel_before_creation`
