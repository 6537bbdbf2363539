"""Optuna's samplers as a searcher."""

from hocket.tune.search.optuna.optuna_search import OptunaSearch as OptunaSearch
