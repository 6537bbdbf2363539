"""Tests of hocket.mesh."""
