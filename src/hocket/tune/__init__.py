"""Search for hyperparameters: run many trials of one function, and collect their outcomes.

The parts, from the outside in:

- `tuner` is the entry, `configs` its settings, `result_grid` and `result` its return values. `context` holds the
  functions that a trial's function calls, `trainable` the base of trials that are classes.
- `search` holds spaces and searchers, which propose configurations. `schedulers` decide which trials go on. Both are
  state machines without clock, files and threads.
- `run` is the driver's side: it chooses the next trial, handles reports, and places trials in processes. `worker` is
  the side of a trial's process.
- `log` is the one file that stores a search; `history` reads it.

Only `search.optuna` imports Optuna, when it is used.
"""

from hocket._base import missing as _missing
from hocket.compat.experiments import Experiment as Experiment
from hocket.compat.experiments import run as run
from hocket.compat.experiments import run_experiments as run_experiments
from hocket.train.checkpoints.checkpoint import Checkpoint as Checkpoint
from hocket.tune.callback import Callback as Callback
from hocket.tune.configs import CheckpointConfig as CheckpointConfig
from hocket.tune.configs import FailureConfig as FailureConfig
from hocket.tune.configs import ResumeConfig as ResumeConfig
from hocket.tune.configs import RunConfig as RunConfig
from hocket.tune.configs import TuneConfig as TuneConfig
from hocket.tune.context import TuneContext as TuneContext
from hocket.tune.context import get_checkpoint as get_checkpoint
from hocket.tune.context import get_context as get_context
from hocket.tune.context import report as report
from hocket.tune.errors import TuneError as TuneError
from hocket.tune.experiment_analysis import ExperimentAnalysis as ExperimentAnalysis
from hocket.tune.parameters import with_parameters as with_parameters
from hocket.tune.program_builder import register_trainable as register_trainable
from hocket.tune.progress_reporter import CLIReporter as CLIReporter
from hocket.tune.progress_reporter import JupyterNotebookReporter as JupyterNotebookReporter
from hocket.tune.progress_reporter import ProgressReporter as ProgressReporter
from hocket.tune.resources import PlacementGroupFactory as PlacementGroupFactory
from hocket.tune.resources import with_resources as with_resources
from hocket.tune.result import Result as Result
from hocket.tune.result_grid import ResultGrid as ResultGrid
from hocket.tune.schedulers.creation import create_scheduler as create_scheduler
from hocket.tune.search.creation import create_searcher as create_searcher
from hocket.tune.search.space import choice as choice
from hocket.tune.search.space import grid_search as grid_search
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
from hocket.tune.stopper import Stopper as Stopper
from hocket.tune.trainable import Trainable as Trainable
from hocket.tune.tuner import Tuner as Tuner

_missing.explain(__name__, ("experiment", "tune_config"))
