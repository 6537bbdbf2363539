"""Tests of hocket.train and of the command, with real processes."""
