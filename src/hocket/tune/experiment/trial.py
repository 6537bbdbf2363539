"""A module for programs written for Ray: it has `Trial`, as in ``trial.status == Trial.TERMINATED``."""

from hocket.tune.trial import Trial as Trial
