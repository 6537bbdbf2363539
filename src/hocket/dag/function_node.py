"""Where Ray's programs look for the tasks of a graph of calls."""

from hocket.core.dag import FunctionNode as FunctionNode
