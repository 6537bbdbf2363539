"""Spark beside Hocket: files that it has written, predictions and training in its tasks.

- `hocket.data.from_spark` and `Dataset.to_spark` bring rows over, as files; `read` (`reading`) opens those again.
- `predict` (`prediction`) calls a model in Spark's tasks.
- `run` (`running`) runs a trainer's ranks in a barrier stage. `hub` is the driver's end of the wires to them, `group`
  what a backend sees of them, `rank` a rank's own side, and `messages` what goes over the wires.
"""

from hocket.spark.prediction import predict as predict
from hocket.spark.reading import read as read
from hocket.spark.running import run as run
