"""Actors that somebody looks after.

A policy decides and touches no engine: it hears events and answers with actions. A crew carries the actions out, waits
for all its actors at once, and tells the policy of each thing that comes.

1. `contract`: events, actions, and a policy's three methods.
2. `wait_loop`: one wait for many sources, each served in turn. Users whose sources are no calls on actors of their own
   (streams, files) use it alone.
3. `crew`: the loop around a policy.
"""
