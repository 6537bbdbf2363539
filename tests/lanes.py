"""Which tests `make test` leaves out, and which test finds their mistakes sooner.

`make test` is for somebody who has changed a line, and wants to know in minutes whether a room is still whole. So each
room keeps its contract suite on the local engine, the tests of its own rules, and a few of its real kills. What is
below runs in `make test-all`, which has everything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

RAY = "It starts Ray. The same suites run on the local engine."
FRAMEWORK = "It imports a framework for seconds. PyTorch's tests go the same ways."
MORE_CASES = "More cases of what the room's contract suite has."
WHOLE_PROGRAM = "A whole program. The tests of the rooms that it uses fail sooner."
MANY_KILLS = "Many kills. Tests of the same room have one of each kind."
PATIENCE = "It waits for a limit of seconds to pass. Tests of the same file reach it sooner."

THOROUGH: Mapping[str, Sequence[str]] = {
    RAY: [
        "tests/engine/ray/",
        "tests/data/test_ray_examples.py",
        "tests/test_ray_page.py",
        "tests/train/test_cluster.py",
        "tests/ps/test_nodes.py",
    ],
    FRAMEWORK: [
        "tests/mesh/test_jax.py",
        "tests/mesh/test_jax_processes.py",
        "tests/mesh/test_tensorflow.py",
        "tests/ps/test_foreign.py",
        "tests/train/test_boosters.py",
        "tests/train/test_framework_contract.py::TestJax",
        "tests/train/test_framework_contract.py::TestKerasOnTensorflow",
        "tests/train/test_horovod_keras.py",
    ],
    MORE_CASES: [
        "tests/collective/test_collective_contract.py::TestWorldOnTwoMachines",
        "tests/collective/test_against_gloo.py",
        "tests/mesh/test_torch.py::test_relayouts_are_what_the_algebra_says",
        "tests/train/test_checkpoint_store_contract.py::TestOwnUpload",
        "tests/train/test_checkpoint_store_contract.py::TestSentFiles",
        "tests/train/test_checkpoint_store_contract.py::TestSharedFolder",
        "tests/train/test_checkpoint_store_contract.py::TestTrainerInTheBackground",
        "tests/train/test_classic_trainer.py",
        "tests/train/test_data_histories.py",
    ],
    WHOLE_PROGRAM: [
        "tests/notebooks/",
        "tests/ps/test_recommender.py",
        "tests/reference/",
        "tests/test_parity.py",
        "tests/test_programs_page.py",
        "tests/test_repository.py::test_a_keras_example_runs",
        "tests/test_repository.py::test_the_example_of_datasets_runs",
        "tests/test_repository.py::test_the_example_of_searches_runs",
        "tests/test_repository.py::test_the_flax_example_runs",
        "tests/test_repository.py::test_the_training_example_runs",
        "tests/train/test_demo.py::test_demo_that_is_ended_leaves_no_process",
    ],
    MANY_KILLS: [
        "tests/engine/test_store.py::test_random_use_over_the_limit",
        "tests/ps/test_gate.py::test_a_worker_dies_at_any_line",
        "tests/ps/test_synchronous.py::test_a_synchronous_step_applies_the_mean_whoever_dies",
        "tests/train/test_collective_faults.py",
    ],
    PATIENCE: [
        "tests/engine/test_store.py::test_container_with_64_mb_of_dev_shm_holds_large_values",
        "tests/ps/test_coordinator.py::test_nothing_is_kept_of_what_nobody_holds",
        "tests/ps/test_coordinator_life.py::test_ctrl_c_ends_a_wait",
        "tests/train/test_ended_ranks.py::test_a_rank_that_does_not_come_is_named_and_given_up",
        "tests/train/test_failures.py::test_an_exception_goes_before_the_reports_that_are_missing_because_of_it",
    ],
}
"""Beginnings of the tests' names, by the reason."""


def list_reasons(nodeid: str) -> Iterator[str]:
    """Yield why a test is thorough; nothing if it is not."""
    for reason, beginnings in THOROUGH.items():
        if nodeid.startswith(tuple(beginnings)):
            yield reason
