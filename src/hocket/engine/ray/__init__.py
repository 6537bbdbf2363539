"""The cluster: the engine contract, mapped onto Ray.

Nothing is scheduled, stored or sent by ourselves. The parts, from the bottom:

1. `adapter`: Ray itself, or an error that says how to install it.
2. `connection`: how a session gets its Ray. It stands on `addresses`, `packages` (what travels to nodes), `folders`
   and `sweeper` (what is left behind) and `access` (questions to a server before a connection, and what Ray changes in
   the process).
3. `outside`: what is other for a driver of ``ray://``; `natives`: our handles and Ray's, and what becomes of one in the
   other; `arrays`: how arrays come to be the reader's own.
4. `errors`: Ray's exceptions, said in our words.
5. `keywords`: our records of options, as Ray's keywords.
6. `notes`: what workers note for the driver; `runner`: what runs in Ray's workers around the user's code.
7. `listing`: what Ray knows of where code runs, of nodes and groups; `tables`: of tasks, actors and more, as rows.
8. `engine`: the contract. `docs/design/0004` tells why it is as it is.
"""

from hocket.engine.ray import adapter as adapter  # before any other part: it explains a Ray that is missing
