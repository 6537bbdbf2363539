"""Events, with their places and times: fixed records in shared memory, which viewers read without asking anybody.

- `layout`: where what stands in the memory, and the kinds of records.
- `ring`: `EventRing`, in which a process writes its own, and `note`, by which its parts say what they spend time on.
- `reader`: `EventReader`, which reads those of a session and counts what it came too late for.
"""

from hocket.engine.events.layout import Kind, State
from hocket.engine.events.ring import EventRing, note, open_notes

__all__ = ["EventRing", "Kind", "State", "note", "open_notes"]
