"""How a framework connects the ranks of a group; for programs with a `Backend` of their own."""

from hocket.train.run.backend import Backend as Backend
from hocket.train.run.backend import BackendConfig as BackendConfig
from hocket.train.run.backend import Workers as Workers
