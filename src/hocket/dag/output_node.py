"""The place in Ray of a graph's output nodes."""

from hocket.core.dag import MultiOutputNode as MultiOutputNode
