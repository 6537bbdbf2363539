"""Engines, which run tasks and actors: one contract, several implementations."""
