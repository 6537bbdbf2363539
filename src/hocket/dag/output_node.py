"""Where Ray's programs look for the outputs of a graph of calls."""

from hocket.core.dag import MultiOutputNode as MultiOutputNode
