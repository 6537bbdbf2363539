"""LightGBM: one model from all ranks' rows, through memory that they share.

Importing this package imports LightGBM.
"""

from importlib import import_module as _import_module

try:
    _import_module("lightgbm")
except ImportError as _error:
    raise ImportError(
        "hocket.train.lightgbm needs LightGBM, which cannot be imported. Run pip install 'hocket[lightgbm]'."
    ) from _error

from hocket import missing as _missing
from hocket.train.frameworks.boosters.lightgbm.callbacks import RayTrainReportCallback as RayTrainReportCallback
from hocket.train.frameworks.boosters.lightgbm.config import LightGBMConfig as LightGBMConfig
from hocket.train.frameworks.boosters.lightgbm.network import get_network_params as get_network_params
from hocket.train.frameworks.boosters.lightgbm.trainer import LightGBMTrainer as LightGBMTrainer

_missing.explain(__name__)
