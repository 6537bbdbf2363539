"""Programs of others: each runs beside its original launcher and under Hocket, and must give the same result.

A program is found in the installed package that ships it, and runs as it is there; or, where no package ships one, it
is written in `scripts` after a public page that its docstring names. docs/programs.md lists them.
"""
