"""A search, shown: `display` while it runs, `tables` as text, and `plots` as pictures."""
