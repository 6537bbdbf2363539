"""Boosted trees: XGBoost and LightGBM train one model from all ranks' rows, with algorithms of their own.

`xgboost` and `lightgbm` have the same files: `config` joins the ranks, `trainer` is the entry, `callbacks` reports.
Below them are `reports`, what both report and when, and `metric_choice`, under which names. Searches use these two and
the callbacks, too. Importing this package imports neither library.
"""
