"""Where Ray's programs look for `Experiment`, and for trials and their states."""

from hocket.tune.functions import Experiment as Experiment
from hocket.tune.trial import Trial as Trial
