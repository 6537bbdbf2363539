"""Looking at what runs, from another process: sessions, their events, and the dashboard that shows them.

- `sessions`: what runs on this machine, and the way to its events.
- `history`: the events that a viewer has read, as columns; what of them lies in a window of time.
- `dashboard`: the pages, their server and its guards.
- `report`: one file that shows a run.
- `vendor`: scripts that others wrote, with their licences.
"""
