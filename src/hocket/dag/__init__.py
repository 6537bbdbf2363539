"""The place in Ray of the nodes of a graph of calls. `hocket.core.dag` explains them."""

from hocket.core.dag import ClassMethodNode as ClassMethodNode
from hocket.core.dag import ClassNode as ClassNode
from hocket.core.dag import DAGNode as DAGNode
from hocket.core.dag import FunctionNode as FunctionNode
from hocket.core.dag import InputAttributeNode as InputAttributeNode
from hocket.core.dag import InputNode as InputNode
from hocket.core.dag import MultiOutputNode as MultiOutputNode
