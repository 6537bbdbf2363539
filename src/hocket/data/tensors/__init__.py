"""Blocks as tensors: each module here imports one framework, at its first use."""
