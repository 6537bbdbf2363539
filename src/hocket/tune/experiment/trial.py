"""Where Ray's programs look for `Trial`: ``trial.status == Trial.TERMINATED``."""

from hocket.tune.trial import Trial as Trial
