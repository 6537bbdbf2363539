"""`multiprocessing.Pool` on Hocket's workers. A program changes only its import."""

from multiprocessing import TimeoutError as TimeoutError

from hocket._base import missing as _missing
from hocket.compat.multiprocessing.pool import Pool as Pool
from hocket.compat.multiprocessing.results import AsyncResult as AsyncResult
from hocket.compat.multiprocessing.results import IMapIterator as IMapIterator

_missing.explain(__name__)
