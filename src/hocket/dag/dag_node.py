"""The place in Ray of the base class of a graph's nodes."""

from hocket.core.dag import DAGNode as DAGNode
