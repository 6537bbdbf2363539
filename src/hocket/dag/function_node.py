"""The place in Ray of a graph's task nodes."""

from hocket.core.dag import FunctionNode as FunctionNode
