"""Groups of actors, each run by a policy.

A policy decides and touches no engine: it receives events and returns actions. A crew carries out the actions, waits
for all its actors at once, and passes each event to the policy.

1. `contract`: events, actions, and a policy's three methods.
2. `wait_loop`: one wait for many sources, each served in turn. Code that waits for streams or files, and not for calls
   on its own actors, uses it alone.
3. `crew`: the loop around a policy.
"""
