"""The parts that every room uses: texts, teaching, tables, settings. None of them is public, and none knows a room."""

__version__ = "0.1.0"
"""The version of the whole package: `hocket.__version__`."""
