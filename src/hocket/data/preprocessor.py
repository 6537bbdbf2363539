"""What all preprocessors have in common, under Ray's name of its module."""

from hocket.data.preprocessors.base import Preprocessor as Preprocessor
from hocket.data.preprocessors.base import PreprocessorNotFittedException as PreprocessorNotFittedException
