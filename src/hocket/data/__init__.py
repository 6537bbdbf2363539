"""What training reads, and in which order.

A `Dataset` is rows in blocks (`blocks`, made of `columns`) and a plan of what shall be done to them (`plan`), to which
`operations` adds steps; it is streamed through tasks (`execution`). `creation` makes it, with `files`; `feed` gives its
batches a form, and `shard` is a rank's part. Arrow enters through `arrow`, pandas through `frames`, and frameworks
through `to_torch`, `to_tensorflow` and `to_jax`, each when it is asked for (`extras`).

`ledger` says which rows each rank takes at each step, from three numbers that are all there is to save; `order` is the
shuffle behind it; `exact` adds up an evaluation so that the number of ranks cannot be seen in the result. These need
numpy alone.
"""

from hocket.data import aggregates as aggregates
from hocket.data.blocks import Schema as Schema
from hocket.data.calls import ActorPoolStrategy as ActorPoolStrategy
from hocket.data.calls import TaskPoolStrategy as TaskPoolStrategy
from hocket.data.creation import from_arrow as from_arrow
from hocket.data.creation import from_items as from_items
from hocket.data.creation import from_numpy as from_numpy
from hocket.data.creation import from_pandas as from_pandas
from hocket.data.creation import range as range  # noqa: A004 (Ray's name)
from hocket.data.creation import read_csv as read_csv
from hocket.data.creation import read_json as read_json
from hocket.data.creation import read_parquet as read_parquet
from hocket.data.dataset import Dataset as Dataset
from hocket.data.exact import ExactMean as ExactMean
from hocket.data.ledger import Ledger as Ledger
from hocket.data.ledger import Slice as Slice
from hocket.data.settings import DataContext as DataContext
from hocket.data.settings import ExecutionOptions as ExecutionOptions
from hocket.data.shard import DataIterator as DataIterator
from hocket.data.tables import GroupedData as GroupedData
