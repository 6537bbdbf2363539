"""Pure state machines for tasks, actors, objects and resources: no IO, no threads, no clock, no randomness.

`machine.Kernel` takes events and answers with instructions; a shell around it (an engine) does the IO.
"""
