"""The place in Ray of a graph's input nodes."""

from hocket.core.dag import InputAttributeNode as InputAttributeNode
from hocket.core.dag import InputNode as InputNode
