"""The settings of datasets, under Ray's name of their module."""

from hocket.data.settings import DataContext as DataContext
from hocket.data.settings import ExecutionOptions as ExecutionOptions
from hocket.data.settings import ShuffleStrategy as ShuffleStrategy
