"""The engine in the driver: the kernel, its sockets and its memory.

`kernel.machine` decides, and the parts of this package carry the decisions out. This module puts the parts together and
closes them at the end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import final

from hocket.engine import contract, descriptors, forks, kernel_parts, node, rules
from hocket.engine.local import driver_store, ends, functions, links, messages, payloads, processes, reactor
from hocket.engine.local.driver import (
    courier,
    floor,
    guardianship,
    inbox,
    objects,
    rounds,
    tasks,
    watch,
    worker_pool,
)
from hocket.kernel import machine, records, resources


@final
class DriverEngine(contract.Engine):
    """The local engine.

    Args:
        node_demand: The machine's resources.
        namespace: The default namespace for actors' names.
        labels: The machine's labels from `hocket.init`, for options that choose among nodes.
        memory_limit: How many bytes of memory large values may take; further values go to disk. None: a part of the
            memory that this process may use.
        spill_folder: The folder for these. Empty: the system's folder for temporary files.
    """

    name = "local"

    def __init__(
        self,
        node_demand: resources.Demand,
        *,
        namespace: str,
        labels: Mapping[str, str] = MappingProxyType({}),
        memory_limit: int | None = None,
        spill_folder: str = "",
    ) -> None:
        super().__init__()
        descriptors.reserve_standard()
        cpus = dict(node_demand).get("CPU", 0) // resources.UNIT
        self.kernel = machine.Kernel(
            node_demand,
            max_idle_workers=max(1, cpus),
            gpu_ids=node.name_gpus(node_demand),
            encode_error=payloads.encode_error,
            error_mark=payloads.ERROR,
            none_value=payloads.NONE,
            end_value=payloads.STREAM_END,
        )
        self.lock = threading.RLock()
        self.session = kernel_parts.Session(self.lock, self.kernel, namespace=namespace, labels=labels)
        descriptors.raise_limit()
        self.session.guard.install()
        try:
            descriptors.check_free()
            self._build(memory_limit, spill_folder)
        except BaseException:  # no descriptors, for example
            self.session.guard.remove()
            raise

    def _build(self, memory_limit: int | None, spill_folder: str) -> None:
        limit = node.choose_store_bytes() if memory_limit is None else memory_limit
        self.handles = kernel_parts.KernelHandles(self, self.session)
        self.metrics = contract.Metrics()
        self.reactor = reactor.Reactor(
            self,
            self.lock,
            build=lambda made: self._build_parts(made, limit, spill_folder),
            guard=self.session.guard,
            check=self.session.guard.check,
            name="hocket-reader",
        )

    def _build_parts(self, made: reactor.Reactor, limit: int, spill_folder: str) -> rounds.Rounds:
        """Make the parts, each from the parts before it; the functions below look up later parts when called."""
        session, kernel, handles = self.session, self.kernel, self.handles

        def kill_worker(worker_id: int) -> None:
            self.parent.kill(worker_id)

        def start_worker(worker: records.WorkerRecord) -> None:
            self.pool.start(worker)

        def send() -> None:
            carrier.carry_out()

        self.links = links.Links(made, kill_worker)
        self.store = driver_store.DriverStore(
            self.lock,
            limit=limit,
            folder=spill_folder,
            tell=self.links.tell,
            send=send,
            wait=made.wait_until,
        )
        self.functions = functions.Functions(kernel.functions)
        self.parent = guardianship.Guardianship(kernel, self.links, self.store, made)
        carrier = courier.Courier(
            session,
            self.links,
            self.store,
            made,
            start_worker=start_worker,
            kill_worker=kill_worker,
        )
        self.floor = floor.Floor(session, carrier, self.links, self.store, self.functions, handles, made)
        unfetched = self.unfetched = kernel_parts.Unfetched(kernel, self.floor.read_arrived)
        feasibility = kernel_parts.Feasibility(kernel)
        names = self.actors = kernel_parts.KernelActors(session, self.floor, handles, _do_nothing)
        self.resources = kernel_parts.KernelResources(session, self.floor, handles, feasibility)
        view = self.view = kernel_parts.KernelView(self, session, self.floor, self.parent)
        values = self.objects = objects.DriverObjects(
            self, session, self.floor, self.store, made, self.parent.spans, unfetched
        )
        self.tasks = tasks.DriverTasks(
            self, session, self.floor, values, self.functions, feasibility, names, self.parent, made
        )
        self.search = ends.Ends(kernel, self.links, carrier.carry_out)
        mail = inbox.Inbox(
            self,
            session,
            self.links,
            self.store,
            self.functions,
            self.search,
            unfetched,
            answers=_list_answers(self.tasks, names, self.resources, view, feasibility, self.store),
        )
        setup = processes.build_setup(
            session.job_id,
            session.node_id,
            session.namespace,
            has_gpus="GPU" in kernel.pool.total,
            has_cpu=feasibility.usual is not None,
        )
        self.pool = worker_pool.WorkerPool(
            session, self.links, self.parent, mail, carrier, self.store, self.functions, made, setup
        )
        self.watch = watch.Watch(session, self.links, self.parent, self.pool, self.search, carrier)
        return rounds.Rounds(
            self, session, self.floor, self.links, self.parent, self.pool, self.watch, view.build_snapshot
        )

    # --- the end ------------------------------------------------------------------------------------------------------

    def cut_off(self) -> None:
        self.session.guard.remove()
        self.reactor.cut_off()
        for link in list(self.links.by_worker.values()):
            link.channel.sock.close()
        self.parent.cut_off()
        forks.cut_off(self)

    def close(self) -> None:
        if self.is_severed:
            return
        session = self.session
        with self.lock:
            if session.is_closed:
                return
            session.finish(rules.build_ended_error())
            for link in list(self.links.by_worker.values()):
                self.links.send(link, (messages.STOP,))
            self.reactor.due.extend(session.take_callbacks())
        self.reactor.run_due()
        self.store.stop()
        self.reactor.close()  # before the guardian's socket: the background reader must not meet a closed descriptor
        self.parent.close()
        for actor in self.kernel.actors.values():
            for marker, _ in actor.markers:
                courier.drop_marker(marker)
        self.links.close()
        self.store.close()
        self.handles.clear()
        try:
            session.guard.remove()
        finally:
            session.guard.check()


def _list_answers(
    work: tasks.DriverTasks,
    names: kernel_parts.KernelActors,
    groups: kernel_parts.KernelResources,
    view: kernel_parts.KernelView,
    feasibility: kernel_parts.Feasibility,
    store: driver_store.DriverStore,
) -> dict[str, Callable[..., object]]:
    """Return the functions that a worker may call with `ASK`."""
    asked = {
        names: ("claim_name", "release_name", "look_up_name", "list_named_actors", "describe_actor", "kill_actor"),
        groups: (
            *("reserve", "remove_group", "list_groups", "list_nodes"),
            *("get_total_resources", "get_free_resources"),
        ),
        view: ("list_errors", "list_records", "statistics"),
    }
    return {
        "ping": _do_nothing,  # the answer comes to the worker behind all earlier messages
        "cancel": work.cancel,
        "check_pending": names.check_pending,
        "check_feasible": feasibility.check_feasible,
        "explain_full": lambda size, reason, is_disk: store.explain_full(size, reason, is_disk=is_disk),
        **{name: getattr(part, name) for part, several in asked.items() for name in several},
    }


def _do_nothing() -> None:
    """Do nothing: a ping only needs an answer, and the driver is no actor that could end."""
