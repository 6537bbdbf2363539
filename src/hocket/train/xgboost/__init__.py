"""XGBoost: histograms are summed over the ranks by XGBoost's own collectives.

Importing this package imports XGBoost.
"""

from importlib import import_module as _import_module

from hocket import extras as _extras
from hocket._base import missing as _missing

with _extras.explain("hocket.train.xgboost", "XGBoost", "Run pip install 'hocket[xgboost]'."):
    _import_module("xgboost")

from hocket.train.frameworks.boosters.xgboost.callbacks import RayTrainReportCallback as RayTrainReportCallback
from hocket.train.frameworks.boosters.xgboost.config import XGBoostConfig as XGBoostConfig
from hocket.train.frameworks.boosters.xgboost.trainer import XGBoostTrainer as XGBoostTrainer

_missing.explain(__name__)
