"""Ray itself. It is imported here first, so that one place explains a missing Ray."""

from __future__ import annotations

from hocket import extras

with extras.explain(
    "The Ray engine",
    "ray[default]",
    "Run pip install 'hocket[ray]', or leave out engine='ray', address= and HOCKET_ADDRESS to run on this machine "
    "without it.",
):
    import ray as ray  # noqa: I001 (where both are missing, Ray is the one to name)
    import grpc as grpc  # plain `ray` does not depend on it
