"""Where Ray's programs look for `PlacementGroupFactory`; new ones take it from `hocket.tune`."""
