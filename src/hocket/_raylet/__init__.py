"""Where Ray's programs look for the types of generators' references."""

from hocket.core.generators import DynamicObjectRefGenerator as DynamicObjectRefGenerator
from hocket.core.generators import ObjectRefGenerator as ObjectRefGenerator
from hocket.engine.contract import ObjectRef as ObjectRef
