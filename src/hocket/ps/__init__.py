"""Parameter servers: servers hold variables, workers compute, a coordinator schedules.

`optimizers` says how a gradient changes a variable.
"""

from hocket.ps.optimizers import FTRL as FTRL
from hocket.ps.optimizers import SGD as SGD
from hocket.ps.optimizers import Adagrad as Adagrad
from hocket.ps.optimizers import Adam as Adam
from hocket.ps.optimizers import Optimizer as Optimizer
