"""Views of running work from another process: sessions, their events, training runs, and searches.

- `sessions`: the sessions on this machine, and access to their events.
- `history`: the events that a viewer has read, in columns, and the part in a window of time.
- `frames`: the frames of a process's stacks that matter to the user.
- `runs`: the log of a training run, its reading, and what slows the run down.
- `watching`, `training`, `searches`: the sessions, runs and searches of a viewer.
- `parts`: the state that servers, coordinators, executions and meshes show.
- `telemetry`: finished work as OpenTelemetry spans.
- `dashboard`: the pages in a browser, with their server and its guards.
- `top`: the pages in a terminal.
- `notebook`: curves in a notebook that follow `fit()`.
- `report`: one file about a run, or that compares several.
- `vendor`: third-party scripts with their licences.
"""
