"""Hocket beside Spark: files that Spark has written, and predictions and training in Spark's tasks.

- `hocket.data.from_spark` and `Dataset.to_spark` move rows, as files; `read` (`reading`) opens Spark's files again.
- `predict` (`prediction`) calls a model in Spark's tasks.
- `run` (`running`) runs a trainer's ranks in a barrier stage. `hub` is the driver's end of the connections to them,
  `group` a backend's view of them, `rank` a rank's own side, and `messages` the messages on the connections.
"""

from hocket.spark.prediction import predict as predict
from hocket.spark.reading import read as read
from hocket.spark.running import run as run
