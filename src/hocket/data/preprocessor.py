"""The base of all preprocessors, under Ray's name of the module."""

from hocket.data.preprocessors.base import Preprocessor as Preprocessor
from hocket.data.preprocessors.base import PreprocessorNotFittedException as PreprocessorNotFittedException
