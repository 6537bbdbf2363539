"""How a process reaches the servers' memory: by mapping it on the same machine, through an actor on another.

`memory_owners` hold the memory, and `links` opens it, or the servers' actors, once in each process. `remote` makes
proxies, and `closure_context` names the worker that sends a push.
"""
