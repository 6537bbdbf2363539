"""Where Ray's programs look for `RuntimeEnv`."""

from hocket.core.environments import RuntimeEnv as RuntimeEnv
