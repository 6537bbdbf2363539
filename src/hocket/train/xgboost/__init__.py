"""XGBoost: histograms summed over the ranks by its own collectives.

Importing this package imports XGBoost.
"""

from importlib import import_module as _import_module

try:
    _import_module("xgboost")
except ImportError as _error:
    raise ImportError(
        "hocket.train.xgboost needs XGBoost, which cannot be imported. Run pip install 'hocket[xgboost]'."
    ) from _error

from hocket import missing as _missing
from hocket.train.frameworks.boosters.xgboost.callbacks import RayTrainReportCallback as RayTrainReportCallback
from hocket.train.frameworks.boosters.xgboost.config import XGBoostConfig as XGBoostConfig
from hocket.train.frameworks.boosters.xgboost.trainer import XGBoostTrainer as XGBoostTrainer

_missing.explain(__name__)
