"""Ray itself: imported here, so that a missing one is explained in one place."""

from __future__ import annotations

from hocket import extras

with extras.explain(
    "The Ray engine",
    "ray[default]",
    "Run pip install 'hocket[ray]', or leave out engine='ray', address= and HOCKET_ADDRESS to run on this machine "
    "without it.",
):
    import ray as ray  # noqa: I001 (where both are missing, Ray is the one to name)
    import grpc as grpc  # Ray alone comes without it
