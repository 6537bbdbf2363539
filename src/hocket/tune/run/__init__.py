"""The driver's side of a search: it chooses the next trial, handles reports, and places trials in processes."""
