"""The place in Ray of a graph's actor nodes and their method nodes."""

from hocket.core.dag import ClassMethodNode as ClassMethodNode
from hocket.core.dag import ClassNode as ClassNode
