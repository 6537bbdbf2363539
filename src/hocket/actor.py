"""Names about actors, in the place where Ray's programs look for them."""

from hocket.core.actor import ActorClass as ActorClass
from hocket.core.actor import ActorClassInheritanceException as ActorClassInheritanceException
from hocket.core.actor import ActorHandle as ActorHandle
from hocket.core.actor import ActorMethod as ActorMethod
from hocket.core.actor import exit_actor as exit_actor
from hocket.core.actor import method as method
