"""`RuntimeEnv`, in the place where Ray's programs look for it."""

from hocket.core.environments import RuntimeEnv as RuntimeEnv
