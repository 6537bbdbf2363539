"""A module for programs written for Ray: it has `TuneConfig`."""

from hocket.tune.configs import TuneConfig as TuneConfig
