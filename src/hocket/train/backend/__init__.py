"""How a framework lets the ranks of a group talk to each other; for programs that bring a `Backend` of their own."""

from hocket.train.run.backend import Backend as Backend
from hocket.train.run.backend import BackendConfig as BackendConfig
from hocket.train.run.backend import Workers as Workers
