"""The lineage of a population: which trial took over which other's state, when, and with which configuration."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, final


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """A change of a trial by `PopulationBasedTraining`: it took over another's state, with a new configuration."""

    tag: str
    """The tag of the trial that gave up its state, from before any change."""
    source_tag: str
    """The tag of the trial whose checkpoint it took, from before any change."""
    time: float
    """The trial's own ``training_iteration`` at the change."""
    source_time: float
    """The other trial's ``training_iteration`` at the change."""
    old_config: dict[str, Any]
    """The configuration with which the checkpoint was made."""
    new_config: dict[str, Any]
    """The configuration with which the trial goes on."""

    def to_row(self) -> list[Any]:
        """Return Ray's form of a change, which Ray writes as one JSON list a line to ``pbt_policy_<trial>.txt``."""
        return [self.tag, self.source_tag, self.time, self.source_time, self.old_config, self.new_config]


def trace(policies: Iterable[Policy], tag: str) -> list[Policy]:
    """Return the changes that led to a trial's present state, in their order.

    Args:
        policies: All changes of a population, in their order.
        tag: The trial's tag.
    """
    traced = []
    for policy in reversed(list(policies)):
        if policy.tag == tag:
            traced.append(policy)
            tag = policy.source_tag
    return traced[::-1]


def read(source: str | pathlib.Path | Sequence[Policy | Sequence[Any]]) -> list[Policy]:
    """Return the changes in a file, or in rows of such a file.

    Raises:
        ValueError: The file does not exist, or a row is invalid.
    """
    if not isinstance(source, str | pathlib.Path):
        return [row if isinstance(row, Policy) else _parse(row, f"row {place}") for place, row in enumerate(source)]
    path = pathlib.Path(source).expanduser()
    if not path.is_file():
        raise ValueError(f"policy_file must be a file of policies, but there is no file {str(path)!r}.")
    policies = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise _build_error(f"line {number} of {str(path)!r}", line.decode(errors="backslashreplace")) from error
        policies.append(_parse(row, f"line {number} of {str(path)!r}"))
    return policies


def _parse(row: Sequence[Any], where: str) -> Policy:
    if not isinstance(row, list | tuple) or len(row) != 6 or not all(isinstance(config, dict) for config in row[4:]):
        raise _build_error(where, row)
    tag, source_tag, time, source_time, old, new = row
    return Policy(tag=tag, source_tag=source_tag, time=time, source_time=source_time, old_config=old, new_config=new)


def _build_error(where: str, row: object) -> ValueError:
    return ValueError(
        f"A policy must be a list [tag, source's tag, time, source's time, old config, new config], but {where} is "
        f"{row!r:.200}. Give PopulationBasedTraining.policies, or a file with one such JSON list per line."
    )
