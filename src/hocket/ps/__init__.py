"""Parameter servers: servers hold variables, workers compute, a coordinator schedules.

`optimizers` says how a gradient changes a variable, and `initializers` what it begins with.
"""

from hocket.ps.initializers import Constant as Constant
from hocket.ps.initializers import Initializer as Initializer
from hocket.ps.initializers import Normal as Normal
from hocket.ps.initializers import Uniform as Uniform
from hocket.ps.initializers import Zeros as Zeros
from hocket.ps.optimizers import FTRL as FTRL
from hocket.ps.optimizers import SGD as SGD
from hocket.ps.optimizers import Adagrad as Adagrad
from hocket.ps.optimizers import Adam as Adam
from hocket.ps.optimizers import Optimizer as Optimizer
