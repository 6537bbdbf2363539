"""The execution of plans: blocks stream through tasks, in order, and only a few at a time.

The reader pulls. Each time the reader asks for a block, as many tasks start as the limits allow (`ExecutionOptions`),
and the reader waits for the oldest task. So a slow reader holds the tasks up, and the limits bound memory whatever the
size of the data. The bound is rough if the sizes of blocks differ much, because the largest earlier block is the
estimate for each task.

`tasks` has the shared parts. `rearranging` puts rows into another order. `pools` keeps actors for functions that take
long to make. `relations` lets the table engine sort, join and group tables that need not fit into memory. `streaming`
combines these; its `Source` is the result of a plan for ranks to read. `records` counts blocks and shows progress.
"""

from hocket.data.execution.records import Record as Record
from hocket.data.execution.streaming import Source as Source
from hocket.data.execution.streaming import Stream as Stream
from hocket.data.execution.streaming import build_source as build_source
from hocket.data.execution.streaming import cut_parts as cut_parts
from hocket.data.execution.streaming import file_source as file_source
from hocket.data.execution.streaming import find_block as find_block
from hocket.data.execution.streaming import store as store
from hocket.data.execution.streaming import stream as stream
from hocket.data.execution.tasks import fetch as fetch
