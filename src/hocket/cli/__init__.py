"""The `hocket` command."""
