"""Collectives on numpy arrays, for training functions and frameworks without a process group of their own."""

from hocket.train.rank.world import get_world as get_world
from hocket.train.run.joining import WorldConfig as WorldConfig
