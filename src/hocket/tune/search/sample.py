"""Ray's module for domains: ``from hocket.tune.search.sample import Categorical, Domain, Float, Integer``."""

from __future__ import annotations

from hocket.tune.search.space import Categorical as Categorical
from hocket.tune.search.space import Domain as Domain
from hocket.tune.search.space import Float as Float
from hocket.tune.search.space import Function as Function
from hocket.tune.search.space import Grid as Grid
from hocket.tune.search.space import Integer as Integer
from hocket.tune.search.space import LogUniform as LogUniform
from hocket.tune.search.space import Normal as Normal
from hocket.tune.search.space import Quantized as Quantized
from hocket.tune.search.space import Sampler as Sampler
from hocket.tune.search.space import Uniform as Uniform
from hocket.tune.search.space import choice as choice
from hocket.tune.search.space import lograndint as lograndint
from hocket.tune.search.space import loguniform as loguniform
from hocket.tune.search.space import qlograndint as qlograndint
from hocket.tune.search.space import qloguniform as qloguniform
from hocket.tune.search.space import qrandint as qrandint
from hocket.tune.search.space import qrandn as qrandn
from hocket.tune.search.space import quniform as quniform
from hocket.tune.search.space import randint as randint
from hocket.tune.search.space import randn as randn
from hocket.tune.search.space import sample_from as sample_from
from hocket.tune.search.space import uniform as uniform
