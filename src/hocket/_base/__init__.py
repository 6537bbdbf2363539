"""What every room uses: texts, teaching, tables, settings. Nothing in it is public, and none of it knows a room."""

__version__ = "0.1.0"
"""The version of the whole package: `hocket.__version__`."""
