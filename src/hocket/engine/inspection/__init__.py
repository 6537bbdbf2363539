"""Views of an engine: its kernel's records as plain rows, with Ray's names for kinds, fields and states.

All engines with a kernel share this package. An engine provides its `Facts`, which the kernel cannot know (pids,
clocks, sizes). The functions change nothing, and compute only on request.
"""

from hocket.engine.inspection.facts import LostWorker as LostWorker
from hocket.engine.inspection.facts import OwnSpan as OwnSpan
from hocket.engine.inspection.facts import Row as Row
from hocket.engine.inspection.view import KINDS as KINDS
from hocket.engine.inspection.view import Filter as Filter
from hocket.engine.inspection.view import StateView as StateView
from hocket.engine.inspection.view import matches as matches
