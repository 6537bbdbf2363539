"""Preprocessors: transformations of rows that are learnt from a data set. The names are Ray's.

`base` has their common base class, and `single` the base class of all that make columns from columns; `chain` joins
several into one. `inputs` reads blocks, `learning` counts values, `categories` numbers them, and `saving` writes JSON.
"""

from hocket.data.preprocessors.base import FitStatus as FitStatus
from hocket.data.preprocessors.base import Preprocessor as Preprocessor
from hocket.data.preprocessors.base import PreprocessorNotFittedException as PreprocessorNotFittedException
from hocket.data.preprocessors.categorizer import Categorizer as Categorizer
from hocket.data.preprocessors.chain import Chain as Chain
from hocket.data.preprocessors.discretizers import CustomKBinsDiscretizer as CustomKBinsDiscretizer
from hocket.data.preprocessors.discretizers import UniformKBinsDiscretizer as UniformKBinsDiscretizer
from hocket.data.preprocessors.encoders import LabelEncoder as LabelEncoder
from hocket.data.preprocessors.encoders import MultiHotEncoder as MultiHotEncoder
from hocket.data.preprocessors.encoders import OneHotEncoder as OneHotEncoder
from hocket.data.preprocessors.encoders import OrdinalEncoder as OrdinalEncoder
from hocket.data.preprocessors.imputer import SimpleImputer as SimpleImputer
from hocket.data.preprocessors.scalers import MaxAbsScaler as MaxAbsScaler
from hocket.data.preprocessors.scalers import MinMaxScaler as MinMaxScaler
from hocket.data.preprocessors.scalers import RobustScaler as RobustScaler
from hocket.data.preprocessors.scalers import StandardScaler as StandardScaler
from hocket.data.preprocessors.stateless import Concatenator as Concatenator
from hocket.data.preprocessors.stateless import Normalizer as Normalizer
from hocket.data.preprocessors.stateless import PowerTransformer as PowerTransformer
from hocket.data.preprocessors.texts import CountVectorizer as CountVectorizer
from hocket.data.preprocessors.texts import FeatureHasher as FeatureHasher
from hocket.data.preprocessors.texts import HashingVectorizer as HashingVectorizer
from hocket.data.preprocessors.texts import Tokenizer as Tokenizer
from hocket.data.preprocessors.torchvision import TorchVisionPreprocessor as TorchVisionPreprocessor
