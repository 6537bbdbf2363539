"""The progress display: a run's progress, speed, time left, and the ranks that lag.

`model` has the numbers, without a clock. `text` puts them into words and colours. `terminal` shows them. `display` is
the callback that connects these, and also handles notebooks.
"""
