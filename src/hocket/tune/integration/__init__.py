"""Bridges from reports of other loops to a trial."""

from hocket._base import missing as _missing

_missing.explain(__name__)
