"""XGBoost, which sums histograms over the ranks with its own collectives (Rabit).

Importing this package imports XGBoost.
"""
