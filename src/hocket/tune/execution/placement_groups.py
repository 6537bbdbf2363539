"""Where Ray's programs look for `PlacementGroupFactory`; new ones take it from `hocket.tune`."""

from hocket.tune.resources import PlacementGroupFactory as PlacementGroupFactory
