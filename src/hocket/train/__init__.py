"""Training on many workers: one function, run by every rank of a group.

The packages, from the outside in:

- `torch`, `jax`, `keras`, `tensorflow`: the names that a training function of that framework imports. `frameworks` has
  their implementation.
- `horovod`, `lightning`, `huggingface`: interfaces of other libraries over the same parts; more are in `hocket.compat`.
- `data_parallel_trainer`: the base of every trainer. `configs` has its settings, `result` its return value.
- `strategies`: how updates travel between ranks, the same for all frameworks.
- `run`: the driver's side of a run. `rank`: the side of each rank, with the functions that a training function calls.
  `checkpoints`: the folders of files that ranks save.
- `progress`, `loggers` and `tracking` show metrics and keep them.

Only the first two groups import frameworks.
"""

import typing as _typing

from hocket._base import missing as _missing

if _typing.TYPE_CHECKING:
    from hocket.compat.classic.checkpoints import CheckpointStrategy as CheckpointStrategy
    from hocket.compat.classic.functions import load_checkpoint as load_checkpoint
    from hocket.compat.classic.functions import local_rank as local_rank
    from hocket.compat.classic.functions import save_checkpoint as save_checkpoint
    from hocket.compat.classic.functions import world_rank as world_rank
    from hocket.compat.classic.functions import world_size as world_size
    from hocket.compat.classic.iterator import TrainingIterator as TrainingIterator
    from hocket.compat.classic.trainer import Trainer as Trainer
    from hocket.compat.classic.training_callbacks import TrainingCallback as TrainingCallback
    from hocket.train import collective as collective
    from hocket.train.checkpoints.checkpoint import Checkpoint as Checkpoint
    from hocket.train.checkpoints.reported import CheckpointConsistencyMode as CheckpointConsistencyMode
    from hocket.train.checkpoints.reported import CheckpointUploadMode as CheckpointUploadMode
    from hocket.train.checkpoints.reported import ReportedCheckpoint as ReportedCheckpoint
    from hocket.train.checkpoints.reported import ReportedCheckpointStatus as ReportedCheckpointStatus
    from hocket.train.configs import CheckpointConfig as CheckpointConfig
    from hocket.train.configs import DivergenceConfig as DivergenceConfig
    from hocket.train.configs import FailureConfig as FailureConfig
    from hocket.train.configs import LoggingConfig as LoggingConfig
    from hocket.train.configs import RunConfig as RunConfig
    from hocket.train.configs import ScalingConfig as ScalingConfig
    from hocket.train.data_parallel_trainer import DataParallelTrainer as DataParallelTrainer
    from hocket.train.errors import ControllerError as ControllerError
    from hocket.train.errors import PreemptionError as PreemptionError
    from hocket.train.errors import RanksDivergedError as RanksDivergedError
    from hocket.train.errors import TrainingFailedError as TrainingFailedError
    from hocket.train.errors import TransferError as TransferError
    from hocket.train.errors import WorkerGroupError as WorkerGroupError
    from hocket.train.preemption import PreemptionInfo as PreemptionInfo
    from hocket.train.progress.display import ProgressDisplay as ProgressDisplay
    from hocket.train.rank.context import TrainContext as TrainContext
    from hocket.train.rank.context import get_all_reported_checkpoints as get_all_reported_checkpoints
    from hocket.train.rank.context import get_checkpoint as get_checkpoint
    from hocket.train.rank.context import get_context as get_context
    from hocket.train.rank.context import get_preemption_info as get_preemption_info
    from hocket.train.rank.context import report as report
    from hocket.train.rank.datasets import TRAIN_DATASET_KEY as TRAIN_DATASET_KEY
    from hocket.train.rank.datasets import DataConfig as DataConfig
    from hocket.train.rank.datasets import get_dataset_shard as get_dataset_shard
    from hocket.train.rank.usage import ShardingBytes as ShardingBytes
    from hocket.train.rank.usage import ShardingUsage as ShardingUsage
    from hocket.train.result import Result as Result
    from hocket.train.run.backend import BackendConfig as BackendConfig
    from hocket.train.stopping import EarlyStopping as EarlyStopping
    from hocket.train.stopping import TimeLimit as TimeLimit
    from hocket.train.user_callback import TrainRunContext as TrainRunContext
    from hocket.train.user_callback import UserCallback as UserCallback
    from hocket.train.validation import ValidationConfig as ValidationConfig
    from hocket.train.validation import ValidationFn as ValidationFn
    from hocket.train.validation import ValidationTaskConfig as ValidationTaskConfig

_missing.explain(__name__)
