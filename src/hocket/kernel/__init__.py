"""Pure state machines for tasks, actors, objects and resources: no IO, no threads, no clock, no randomness.

`machine.Kernel` takes events and returns instructions; the engine around it does the IO.
"""
