"""Rows in groups, under Ray's name of their module."""

from hocket.data.methods.tables import GroupedData as GroupedData
