"""`hocket top`: running work in a terminal.

- `tables`: the contents, as rows.
- `screen`: the program that shows them, with textual.
"""
