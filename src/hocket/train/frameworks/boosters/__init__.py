"""Boosted trees: XGBoost and LightGBM train one model from all ranks' rows, with their own algorithms.

`xgboost` and `lightgbm` have the same modules: `config` joins the ranks, `trainer` has the trainer, `callbacks`
reports. Both use `reports`, which decides what a callback reports and when, and `metric_choice`, which chooses metrics
and their names. Searches use these two and the callbacks, too. Importing this package imports neither library.
"""
