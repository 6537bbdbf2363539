"""Training on many workers: one function, run by every rank of a gang.

`data_parallel_trainer` is the entry; `controller` starts a `worker_group`, has a `follower` take its reports, and applies the failure policy;
`context` and `collective` are what the training function calls, `questions` and `desk` how it is answered; `checkpoint_manager` and `storage` keep what it saved, `parcels` and `copies` bring it
there from other machines, and back, `uploads` while training goes on; `validation_queue` validates it. `budget` counts failures, and
`notices` and `drain` see to ranks that are told to end. `classic` is the trainer of 2022, `progress` and `loggers` show and keep metrics, by `tracking`. `local_mode` and `turn_group` run
ranks in this process, `datasets` gives ranks their rows, `strategies` says how updates travel, and `world` joins ranks for frameworks that cannot themselves. Adapters for
frameworks are folders of their own, such as `hocket.train.torch`; nothing here imports a framework.
"""

from hocket.train import collective as collective
from hocket.train.backend import BackendConfig as BackendConfig
from hocket.train.callbacks import TrainRunContext as TrainRunContext
from hocket.train.callbacks import UserCallback as UserCallback
from hocket.train.checkpoint import Checkpoint as Checkpoint
from hocket.train.classic.checkpoints import CheckpointStrategy as CheckpointStrategy
from hocket.train.classic.functions import load_checkpoint as load_checkpoint
from hocket.train.classic.functions import local_rank as local_rank
from hocket.train.classic.functions import save_checkpoint as save_checkpoint
from hocket.train.classic.functions import world_rank as world_rank
from hocket.train.classic.functions import world_size as world_size
from hocket.train.classic.iterator import TrainingIterator as TrainingIterator
from hocket.train.classic.trainer import Trainer as Trainer
from hocket.train.classic_callbacks import TrainingCallback as TrainingCallback
from hocket.train.configs import CheckpointConfig as CheckpointConfig
from hocket.train.configs import FailureConfig as FailureConfig
from hocket.train.configs import LoggingConfig as LoggingConfig
from hocket.train.configs import RunConfig as RunConfig
from hocket.train.configs import ScalingConfig as ScalingConfig
from hocket.train.context import TrainContext as TrainContext
from hocket.train.context import get_all_reported_checkpoints as get_all_reported_checkpoints
from hocket.train.context import get_checkpoint as get_checkpoint
from hocket.train.context import get_context as get_context
from hocket.train.context import get_preemption_info as get_preemption_info
from hocket.train.context import report as report
from hocket.train.data_parallel_trainer import DataParallelTrainer as DataParallelTrainer
from hocket.train.datasets import TRAIN_DATASET_KEY as TRAIN_DATASET_KEY
from hocket.train.datasets import DataConfig as DataConfig
from hocket.train.datasets import get_dataset_shard as get_dataset_shard
from hocket.train.errors import ControllerError as ControllerError
from hocket.train.errors import PreemptionError as PreemptionError
from hocket.train.errors import TrainingFailedError as TrainingFailedError
from hocket.train.errors import TransferError as TransferError
from hocket.train.errors import WorkerGroupError as WorkerGroupError
from hocket.train.preemption import PreemptionInfo as PreemptionInfo
from hocket.train.progress.display import ProgressDisplay as ProgressDisplay
from hocket.train.reported import CheckpointConsistencyMode as CheckpointConsistencyMode
from hocket.train.reported import CheckpointUploadMode as CheckpointUploadMode
from hocket.train.reported import ReportedCheckpoint as ReportedCheckpoint
from hocket.train.reported import ReportedCheckpointStatus as ReportedCheckpointStatus
from hocket.train.result import Result as Result
from hocket.train.validation import ValidationConfig as ValidationConfig
from hocket.train.validation import ValidationFn as ValidationFn
from hocket.train.validation import ValidationTaskConfig as ValidationTaskConfig
