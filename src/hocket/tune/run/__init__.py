"""The driver's side of a search: which trial is next, what becomes of a report, and where trials run."""
