"""Small queries to the session and the machine."""

from __future__ import annotations

from typing import Any

from hocket.core import session

_logged: set[str] = set()


def list_named_actors(all_namespaces: bool = False) -> list[Any]:
    """Return the names of the living actors that have one.

    Args:
        all_namespaces: Whether to include all namespaces, and not only the caller's own.

    Returns:
        Names; with `all_namespaces` a dict with the keys ``name`` and ``namespace`` for each.

    Raises:
        SessionClosedError: No session is open.

    Example:
        >>> import hocket
        >>> @hocket.remote
        ... class Account:
        ...     pass
        >>> context = hocket.init(num_cpus=1, engine="inprocess", namespace="bank")
        >>> savings = Account.options(name="savings").remote()
        >>> hocket.util.list_named_actors()
        ['savings']
        >>> hocket.util.list_named_actors(all_namespaces=True)
        [{'name': 'savings', 'namespace': 'bank'}]
    """
    engine = session.get_open_engine()
    found = engine.actors.list_named_actors()
    if all_namespaces:
        return [{"name": name, "namespace": namespace} for namespace, name in found]
    own = engine.view.get_context().namespace
    return [name for namespace, name in found if namespace == own]


def get_node_ip_address(address: str | None = None) -> str:
    """Return this machine's address for the processes of the session: loopback, because all of them run here.

    Args:
        address: For programs written for Ray: has no effect on one machine.

    Example:
        >>> import hocket
        >>> hocket.util.get_node_ip_address()
        '127.0.0.1'
    """
    return "127.0.0.1"


def log_once(key: str) -> bool:
    """Return whether this is the process's first call with a key. The caller then logs its message.

    Example:
        >>> import hocket
        >>> hocket.util.log_once("slow disk"), hocket.util.log_once("slow disk")
        (True, False)
    """
    if key in _logged:
        return False
    _logged.add(key)
    return True
