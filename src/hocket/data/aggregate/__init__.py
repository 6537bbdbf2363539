"""Aggregates: numbers that summarise many values, such as their sum.

The table engine computes the aggregates of `sql`, and Python functions compute those of `accumulating`.
"""

from hocket._base import missing as _missing
from hocket.data.aggregate.accumulating import Accumulating as Accumulating
from hocket.data.aggregate.accumulating import AggregateFn as AggregateFn
from hocket.data.aggregate.accumulating import AggregateFnV2 as AggregateFnV2
from hocket.data.aggregate.accumulating import ApproximateTopK as ApproximateTopK
from hocket.data.aggregate.accumulating import ValueCounter as ValueCounter
from hocket.data.aggregate.sql import AbsMax as AbsMax
from hocket.data.aggregate.sql import Aggregation as Aggregation
from hocket.data.aggregate.sql import ApproximateQuantile as ApproximateQuantile
from hocket.data.aggregate.sql import AsList as AsList
from hocket.data.aggregate.sql import Count as Count
from hocket.data.aggregate.sql import CountDistinct as CountDistinct
from hocket.data.aggregate.sql import Max as Max
from hocket.data.aggregate.sql import Mean as Mean
from hocket.data.aggregate.sql import Min as Min
from hocket.data.aggregate.sql import MissingValuePercentage as MissingValuePercentage
from hocket.data.aggregate.sql import Quantile as Quantile
from hocket.data.aggregate.sql import Std as Std
from hocket.data.aggregate.sql import Sum as Sum
from hocket.data.aggregate.sql import Unique as Unique
from hocket.data.aggregate.sql import ZeroPercentage as ZeroPercentage

_missing.explain(__name__)
