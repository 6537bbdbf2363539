"""Where Ray's programs look for what all nodes of a graph of calls are."""

from hocket.core.dag import DAGNode as DAGNode
