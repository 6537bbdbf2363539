"""Looking at what runs, from another process: sessions, their events, runs of trainers, and who shows them.

- `sessions`: what runs on this machine, and the way to its events.
- `history`: the events that a viewer has read, as columns; what of them lies in a window of time.
- `frames`: what of a process's stacks is of interest.
- `runs`: the log that a run of a trainer keeps, what is read from it, and what holds a run up.
- `watching`, `training`, `searches`: the sessions, the runs and the searches that a viewer looks at.
- `parts`: what servers, coordinators, executions and meshes show of themselves.
- `telemetry`: what ran, as spans of OpenTelemetry.
- `dashboard`: the pages in a browser, their server and its guards.
- `top`: the pages in a terminal.
- `notebook`: curves in a notebook, which move while `fit()` runs.
- `report`: one file that shows a run, or compares several.
- `vendor`: scripts that others wrote, with their licences.
"""
