"""Base classes of callbacks: `UserCallback` is for ``fit()``; the others, of 2022, are for `Trainer.run`."""

from hocket.compat.classic.training_callbacks import JsonLoggerCallback as JsonLoggerCallback
from hocket.compat.classic.training_callbacks import MLflowLoggerCallback as MLflowLoggerCallback
from hocket.compat.classic.training_callbacks import PrintCallback as PrintCallback
from hocket.compat.classic.training_callbacks import TBXLoggerCallback as TBXLoggerCallback
from hocket.compat.classic.training_callbacks import TrainingCallback as TrainingCallback
from hocket.train.user_callback import TrainRunContext as TrainRunContext
from hocket.train.user_callback import UserCallback as UserCallback
