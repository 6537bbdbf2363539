"""Where Ray's programs look for `TuneConfig`."""

from hocket.tune.configs import TuneConfig as TuneConfig
