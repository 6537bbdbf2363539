"""Blocks as tensors: each framework enters through a module here, at its first use."""
