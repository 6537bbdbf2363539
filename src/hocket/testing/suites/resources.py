"""The contract of every engine on resources, placement groups and runtime environments."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from hocket import exceptions
from hocket.core import api, placement, session
from hocket.testing.suites import programs


class _GroupHolder:
    """An actor that reserves all CPUs."""

    def reserve(self, lifetime: str | None = None) -> int:
        """Reserve all CPUs, and return the actor's process id."""
        group = placement.placement_group([{"CPU": programs.CPUS}], name="held", lifetime=lifetime)
        assert group.wait(20)
        return os.getpid()


class ResourceContract:
    """The resources and placement groups of every engine. Part of `EngineContract`."""

    def test_resources_are_reported(self) -> None:
        total = api.cluster_resources()
        assert total["memory"] > 0
        assert (total["CPU"], total["camera"]) == (float(programs.CPUS), 1.0)
        programs.wait_until(lambda: api.available_resources().get("CPU") == total["CPU"])
        assert api.available_resources()["camera"] == 1.0
        assert [node["Alive"] for node in api.nodes()] == [True]

    def test_actor_holds_what_it_names(self) -> None:
        counter = api.remote(num_cpus=1, resources={"camera": 1})(programs.Counter).remote()
        api.get(counter.add.remote())
        programs.wait_until(lambda: api.available_resources().get("CPU") == programs.CPUS - 1.0)
        assert "camera" not in api.available_resources()

    @pytest.mark.parametrize(
        ("given", "shown"), [({"num_cpus": 64}, "CPU: 64"), ({"resources": {"lidar": 1}}, "lidar: 1")]
    )
    def test_impossible_requests_are_refused_at_the_call(self, given: dict[str, Any], shown: str) -> None:
        with pytest.raises(exceptions.TaskUnschedulableError, match=f"asks for .*{shown}.*has .*Ask for less"):
            api.remote(**given)(programs.square).remote(1)
        with pytest.raises(exceptions.ActorUnschedulableError, match=shown):
            api.remote(**given)(programs.Counter).remote()

    def test_placement_group_reserves_all_or_nothing(self) -> None:
        group = placement.placement_group([{"CPU": 1}, {"CPU": 1}], name="both")
        assert group.wait(10)
        programs.wait_until(lambda: "CPU" not in api.available_resources())
        strategy = placement.PlacementGroupSchedulingStrategy(group, 1)
        counter = api.remote(num_cpus=1, scheduling_strategy=strategy)(programs.Counter).remote()
        assert api.get(counter.add.remote()) == 1
        assert placement.get_placement_group("both") == group
        placement.remove_placement_group(group)
        with pytest.raises(exceptions.ActorDiedError, match=r"[Pp]lacement group .*removed"):
            programs.wait_until(lambda: api.get(counter.add.remote()) < 0)
        programs.wait_until(lambda: api.available_resources().get("CPU") == programs.CPUS)

    @pytest.mark.needs("immediate_kill")
    def test_actors_of_a_removed_placement_group_answer_no_more(self) -> None:
        group = placement.placement_group([{"CPU": 1}])
        strategy = placement.PlacementGroupSchedulingStrategy(group)
        counter = api.remote(num_cpus=1, scheduling_strategy=strategy)(programs.Counter).remote()
        assert api.get(counter.add.remote()) == 1
        placement.remove_placement_group(group)
        with pytest.raises(exceptions.ActorDiedError, match=r"[Pp]lacement group .*removed"):
            api.get(counter.add.remote())

    def test_placement_groups_wait_for_each_other(self) -> None:
        first = placement.placement_group([{"CPU": 2}])
        others = [placement.placement_group([{"CPU": 1}]) for _ in range(2)]
        ready = [group.ready() for group in others]
        placement.remove_placement_group(first)
        assert api.get(ready) == [None, None]

    def test_what_waits_for_a_removed_placement_group_fails(self) -> None:
        first, second = placement.placement_group([{"CPU": 2}]), placement.placement_group([{"CPU": 1}])
        pending = second.ready()
        strategy = placement.PlacementGroupSchedulingStrategy(second)
        task = api.remote(scheduling_strategy=strategy)(programs.square).remote(1)
        placement.remove_placement_group(second)
        late = api.remote(scheduling_strategy=strategy)(programs.square).remote(1)
        for ref in (pending, task, late):
            with pytest.raises(exceptions.TaskPlacementGroupRemoved, match="removed"):
                api.get(ref)
        placement.remove_placement_group(first)

    def test_removed_placement_group_is_in_the_table(self) -> None:
        group = placement.placement_group([{"CPU": 1}], name="gone")
        assert group.wait(timeout_seconds=20)
        placement.remove_placement_group(group)
        found = placement.placement_group_table(group)
        assert (found["state"], found["bundles"], found["name"]) == ("REMOVED", {0: {"CPU": 1}}, "gone")
        with pytest.raises(ValueError, match="'gone': no group has it"):
            placement.get_placement_group("gone")

    def test_groups_of_a_killed_actor_are_given_back(self) -> None:
        holder = api.remote(num_cpus=0)(_GroupHolder).remote()
        api.get(holder.reserve.remote())
        api.kill(holder)
        assert api.get(api.remote(num_cpus=programs.CPUS)(programs.square).remote(3), timeout=30) == 9

    @pytest.mark.needs("processes")
    def test_groups_of_an_actor_that_crashed_are_given_back(self) -> None:
        holder = api.remote(num_cpus=0)(_GroupHolder).remote()
        pid = api.get(holder.reserve.remote())
        waiting = api.remote(num_cpus=programs.CPUS)(programs.square).remote(3)
        os.kill(pid, signal.SIGKILL)
        assert api.get(waiting, timeout=30) == 9

    def test_detached_groups_outlive_their_actor(self) -> None:
        holder = api.remote(num_cpus=0)(_GroupHolder).remote()
        api.get(holder.reserve.remote("detached"))
        api.kill(holder)
        with pytest.raises(exceptions.GetTimeoutError):
            api.get(api.remote(num_cpus=1)(programs.square).remote(3), timeout=1.5)
        placement.remove_placement_group(placement.get_placement_group("held"))

    def test_impossible_placement_group_is_refused(self) -> None:
        with pytest.raises(exceptions.InfeasibleResourcesError, match=r"asks for .*CPU: 2.* but this session has"):
            placement.placement_group([{"CPU": 2}, {"CPU": 2}])

    def test_context_tells_where_the_code_runs(self) -> None:
        @api.remote(num_cpus=0.5)
        def tell() -> tuple[str | None, str | None, dict[str, float]]:
            context = api.get_runtime_context()
            return context.get_task_name(), context.get_actor_id(), context.get_assigned_resources()

        assert api.get(tell.remote()) == ("tell", None, {"CPU": 0.5})
        assert api.get_runtime_context().get_task_id() is None

    def test_named_actors_are_listed_while_they_live(self) -> None:
        engine = session.get_engine()
        named = api.remote(programs.Counter).options(name="named", namespace="one").remote()
        other = api.remote(programs.Counter).options(name="other", namespace="two").remote()
        unnamed = api.remote(programs.Counter).remote()
        api.get([handle.add.remote() for handle in (named, other, unnamed)])
        assert sorted(engine.actors.list_named_actors()) == [("one", "named"), ("two", "other")]
        assert api.get(api.remote(programs.list_named_actors).remote()) == [("one", "named"), ("two", "other")]

    def test_what_a_task_counts_is_there_with_its_result(self) -> None:
        engine = session.get_engine()
        engine.metrics.record((("counter", "tests", "", (), (), (0.5,)),))
        api.get([api.remote(programs.count).remote(amount) for amount in range(10)])
        (family,) = engine.metrics.collect().families.values()
        assert (family.kind, family.name, family.series) == ("counter", "tests", {(): (45.5,)})

    def test_unpicklable_argument_names_the_part(self) -> None:
        with pytest.raises(exceptions.SerializationError, match=r"\['inner'\].*lock.*Remedy"):
            api.remote(programs.square).remote({"inner": threading.Lock()})  # type: ignore[call-overload]

    def test_unpicklable_result_is_the_tasks_error(self) -> None:
        @api.remote
        def lock() -> object:
            return threading.Lock()

        with pytest.raises(exceptions.SerializationError, match=r"the result of `lock`.*Remedy"):
            api.get(lock.remote())


class EnvironmentContract:
    """The runtime environments and groups of every engine. Part of `EngineContract`."""

    def test_variables_are_seen_and_inherited(self) -> None:
        @api.remote
        def read(name: str) -> str | None:
            return os.environ.get(name)

        @api.remote(runtime_env={"env_vars": {"HOCKET_OUTER": "1", "HOCKET_BOTH": "outer"}})
        def nest() -> list[Any]:
            inner = read.options(runtime_env={"env_vars": {"HOCKET_BOTH": "inner"}})
            refs = [read.remote("HOCKET_OUTER"), inner.remote("HOCKET_OUTER"), inner.remote("HOCKET_BOTH")]
            return list(api.get(refs))

        assert api.get(nest.remote()) == ["1", "1", "inner"]
        assert api.get(read.remote("HOCKET_OUTER")) is None

    def test_folder_and_modules(self, tmp_path: Path) -> None:
        (tmp_path / "work").mkdir()
        (tmp_path / "work" / "note.txt").write_text("here")
        (tmp_path / "hocket_extra_module.py").write_text("answer = 42")
        environment = {"working_dir": str(tmp_path / "work"), "py_modules": [str(tmp_path / "hocket_extra_module.py")]}

        @api.remote(runtime_env=environment)
        def look() -> tuple[str, int]:
            import hocket_extra_module  # type: ignore[import-not-found]

            return Path("note.txt").read_text(), hocket_extra_module.answer

        assert api.get(look.remote()) == ("here", 42)

    def test_children_run_in_the_captured_group(self) -> None:
        group = placement.placement_group([{"CPU": 1}])
        strategy = placement.PlacementGroupSchedulingStrategy(group, placement_group_capture_child_tasks=True)

        @api.remote
        def where() -> str | None:
            return api.get_runtime_context().get_placement_group_id()

        class There:
            def say(self) -> str | None:
                return api.get_runtime_context().get_placement_group_id()

        there = api.remote(There)

        @api.remote
        def nest() -> object:
            none = placement.PlacementGroupSchedulingStrategy(None)
            outside = there.options(scheduling_strategy=none, num_cpus=0).remote()
            return api.get(
                [
                    where.remote(),
                    where.options(scheduling_strategy=none, num_cpus=0).remote(),
                    outside.say.remote(),
                ]
            )

        assert api.get(nest.options(scheduling_strategy=strategy).remote()) == [group.id, None, None]
        assert api.get(where.remote()) is None

    def test_nodes_are_chosen_by_id_and_label(self) -> None:
        square = api.remote(programs.square)
        here = api.get_runtime_context().get_node_id()
        affinity = placement.NodeAffinitySchedulingStrategy
        assert api.get(square.options(scheduling_strategy=affinity(here, soft=False)).remote(2)) == 4
        assert api.get(square.options(scheduling_strategy=affinity("elsewhere", soft=True)).remote(2)) == 4
        with pytest.raises(exceptions.TaskUnschedulableError, match="'elsewhere', but no node has this id"):
            square.options(scheduling_strategy=affinity("elsewhere", soft=False)).remote(2)
        assert api.get(square.options(label_selector={"ray.io/node-id": here}).remote(2)) == 4
        with pytest.raises(exceptions.TaskUnschedulableError, match="but the labels of the nodes are"):
            square.options(label_selector={"disk": "ssd"}).remote(2)
        label = placement.NodeLabelSchedulingStrategy
        assert api.get(square.options(scheduling_strategy=label({"disk": placement.DoesNotExist()})).remote(2)) == 4
        with pytest.raises(exceptions.TaskUnschedulableError, match="but the labels of the nodes are"):
            square.options(scheduling_strategy=label({"disk": placement.In("ssd")})).remote(2)
