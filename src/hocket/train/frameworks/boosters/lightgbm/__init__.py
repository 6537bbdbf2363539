"""LightGBM, with its collectives through memory that the ranks share.

Importing this package imports LightGBM.
"""
