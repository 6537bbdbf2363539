"""Views of a search: `display` while it runs, `tables` as text, and `plots` as figures."""
