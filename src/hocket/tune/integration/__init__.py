"""Bridges from other libraries' training loops to a trial's reports."""

from hocket._base import missing as _missing

_missing.explain(__name__)
