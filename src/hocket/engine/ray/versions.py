"""Versions have to agree: values travel as pickles, and Ray's own messages change from release to release."""

from __future__ import annotations

from collections.abc import Mapping

from hocket import exceptions

ADVICE = {
    "Ray": "pip install ray=={}",
    "Hocket": "pip install hocket=={}",
    "Python": "a driver with Python {}, for example with conda create python={} or uv venv --python {}",
}
"""What to do here, by what differs; to be formatted with the version of the cluster."""


def compare_versions(where: str, ours: Mapping[str, str], theirs: Mapping[str, str]) -> None:
    """Make sure that what the cluster says of itself agrees with this process.

    Python may differ in its last number only if Ray is told so.
    """
    different = [name for name in ours if theirs.get(name) not in (None, ours[name])]
    if not different:
        return
    facts = " and ".join(f"{name} {theirs[name]}, and this process {name} {ours[name]}" for name in different)
    remedies = "; ".join(ADVICE[name].replace("{}", theirs[name]) for name in different)
    raise exceptions.VersionMismatchError(
        f"The cluster at {where!r} has {facts}. They must be the same. Install here what the cluster has "
        f"({remedies}), or on every machine of the cluster what is here, and start it again."
    )
