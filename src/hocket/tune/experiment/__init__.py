"""A package for programs written for Ray: it has `Experiment`, trials and their states."""

from hocket.compat.experiments import Experiment as Experiment
from hocket.tune.trial import Trial as Trial
