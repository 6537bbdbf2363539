"""Events: records in shared memory of what each process did and when, which viewers read on their own.

- `layout`: the layout of the memory, and the kinds of records.
- `ring`: `EventRing`, into which a process writes its events, and `note`, which its parts call for their own.
- `reader`: `EventReader`, which reads a session's events, and counts those that were overwritten before.
"""

from hocket.engine.events.layout import Kind, State
from hocket.engine.events.ring import EventRing, note, open_notes

__all__ = ["EventRing", "Kind", "State", "note", "open_notes"]
