"""Interfaces of other libraries over the same parts: `classic` is Ray Train's trainer of 2022."""
