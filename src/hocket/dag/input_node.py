"""Where Ray's programs look for the inputs of a graph of calls."""

from hocket.core.dag import InputAttributeNode as InputAttributeNode
from hocket.core.dag import InputNode as InputNode
