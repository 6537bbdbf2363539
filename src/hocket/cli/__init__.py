"""The ``hocket`` command."""
