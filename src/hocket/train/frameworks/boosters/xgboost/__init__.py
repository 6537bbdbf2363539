"""XGBoost: histograms summed over the ranks by its own collectives (Rabit).

Importing this package imports XGBoost.
"""
