"""Datasets, and the order in which training reads their rows.

A `Dataset` holds a plan (`plan`): the reads that supply its blocks (`block_reads`), and the operations on the blocks.
Blocks (`blocks`) consist of columns (`columns`). The methods of a `Dataset` are functions in `methods`. Most methods
add a step to the plan: `steps` has all kinds of them, and `calls` reads users' functions. `relations` and
`aggregate` write the queries of operations that need all rows; `transport` converts columns for the table engine and
back. `execution` streams the plan through tasks. `creation` makes datasets from values and `readers` from files, whose
formats `sources` knows. `shard` is a rank's part. Other libraries are imported at first use (`hocket.extras`): Arrow in
`arrow`, pandas in `frames`, Spark in `spark`, frameworks in `to_torch`, `to_tensorflow` and `to_jax`.

`ledger` computes which rows each rank takes at each step, from three numbers, which are all that has to be saved.
`order` is the shuffle behind the ledger. `exact` adds up an evaluation, and its result does not depend on the number of
ranks. These three modules need numpy alone.
"""

import typing as _typing

from hocket._base import missing as _missing

if _typing.TYPE_CHECKING:
    from hocket.data import aggregate as aggregate
    from hocket.data.blocks import Schema as Schema
    from hocket.data.calls import ActorPoolStrategy as ActorPoolStrategy
    from hocket.data.calls import TaskPoolStrategy as TaskPoolStrategy
    from hocket.data.creation import from_arrow as from_arrow
    from hocket.data.creation import from_arrow_refs as from_arrow_refs
    from hocket.data.creation import from_blocks as from_blocks
    from hocket.data.creation import from_generators as from_generators
    from hocket.data.creation import from_huggingface as from_huggingface
    from hocket.data.creation import from_items as from_items
    from hocket.data.creation import from_numpy as from_numpy
    from hocket.data.creation import from_numpy_refs as from_numpy_refs
    from hocket.data.creation import from_pandas as from_pandas
    from hocket.data.creation import from_pandas_refs as from_pandas_refs
    from hocket.data.creation import from_spark as from_spark
    from hocket.data.creation import from_tf as from_tf
    from hocket.data.creation import from_torch as from_torch
    from hocket.data.creation import range as range
    from hocket.data.creation import range_tensor as range_tensor
    from hocket.data.creation import read_datasource as read_datasource
    from hocket.data.creation import read_sql as read_sql
    from hocket.data.dataset import Dataset as Dataset
    from hocket.data.exact import ExactMean as ExactMean
    from hocket.data.ledger import Ledger as Ledger
    from hocket.data.ledger import Slice as Slice
    from hocket.data.methods.conversions import DatasetSummary as DatasetSummary
    from hocket.data.methods.rows import RandomSeedConfig as RandomSeedConfig
    from hocket.data.methods.tables import GroupedData as GroupedData
    from hocket.data.preprocessors.base import Preprocessor as Preprocessor
    from hocket.data.readers import read_binary_files as read_binary_files
    from hocket.data.readers import read_csv as read_csv
    from hocket.data.readers import read_images as read_images
    from hocket.data.readers import read_json as read_json
    from hocket.data.readers import read_numpy as read_numpy
    from hocket.data.readers import read_orc as read_orc
    from hocket.data.readers import read_parquet as read_parquet
    from hocket.data.readers import read_text as read_text
    from hocket.data.readers import read_tfrecords as read_tfrecords
    from hocket.data.readers import read_webdataset as read_webdataset
    from hocket.data.settings import DataContext as DataContext
    from hocket.data.settings import ExecutionOptions as ExecutionOptions
    from hocket.data.shard import DataIterator as DataIterator
    from hocket.data.sources.choosing import FileShuffleConfig as FileShuffleConfig
    from hocket.data.sources.custom import Datasink as Datasink
    from hocket.data.sources.custom import Datasource as Datasource
    from hocket.data.sources.custom import ReadTask as ReadTask
    from hocket.data.sources.sinks import BlockBasedFileDatasink as BlockBasedFileDatasink
    from hocket.data.sources.sinks import RowBasedFileDatasink as RowBasedFileDatasink
    from hocket.data.sources.writing import SaveMode as SaveMode

_missing.explain(
    __name__,
    (
        *("block", "context", "datasource", "datatype", "exceptions", "expressions"),
        *("grouped_data", "iterator", "preprocessor", "preprocessors"),
    ),
)
