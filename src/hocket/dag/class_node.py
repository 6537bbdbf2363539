"""Where Ray's programs look for the actors of a graph of calls, and for their methods."""

from hocket.core.dag import ClassMethodNode as ClassMethodNode
from hocket.core.dag import ClassNode as ClassNode
