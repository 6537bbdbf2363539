"""`hocket top`: what runs, in a terminal.

- `tables`: what is shown, as rows.
- `screen`: the program that shows it, with textual.
"""
