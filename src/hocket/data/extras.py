"""Libraries that come with an extra of this package: see `hocket.extras`."""

from hocket import extras

load = extras.load
