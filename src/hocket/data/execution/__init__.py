"""Executes a plan: streams blocks through tasks, in order, and never many at once.

The reader pulls. Each time it asks for a block, as many tasks are started as the limits allow (`ExecutionOptions`), and
the oldest one is waited for. So a reader that is slow holds the tasks up, and memory is bounded by the limits whatever
the size of the data: with blocks of very different sizes, roughly, because a task is judged by the largest block that
came before it.

`tasks` has what all share; `rearranging` puts rows into another order; `pools` keeps actors for functions that need a
long time to be made; `relations` has an engine sort, join and group what need not fit into memory; `streaming` puts
them together, and its `Source` is what a plan leaves for ranks to read; `records` counts what passes, and shows it in a
terminal.
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
