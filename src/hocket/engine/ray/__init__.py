"""The engine on Ray, which maps the engine contract onto a Ray cluster. Ray schedules, stores and sends everything.

The parts, from the bottom:

1. `adapter`: Ray itself, or an error that says how to install it.
2. `connection`: the start of a Ray, or a connection to one. It uses `addresses`, `packages` (modules that travel to
   nodes), `folders` and `sweeper` (the removal of remains) and `access` (questions to a server before a connection, and
   Ray's settings in the process).
3. `outside`: the differences for drivers of ``ray://``; `natives`: the conversion between our handles and Ray's;
   `arrays`: arrays that readers can write to.
4. `errors`: the translation of Ray's exceptions into ours.
5. `keywords`: our records of options, as Ray's keywords.
6. `notes`: metrics and failures that workers send to the driver; `runner`: the code around the user's in Ray's workers.
7. `listing`: Ray's facts about running code, nodes and groups; `tables`: about tasks, actors and more, as rows.
8. `engine`: the contract. `docs/design/0004` gives the reasons for this design.
"""

from hocket.engine.ray import adapter as adapter  # before any other part, because it explains a missing Ray
