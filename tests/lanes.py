"""Which tests `make test` leaves out, and which test finds their mistakes sooner.

`make test` is for somebody who has changed a line, and wants to know in minutes whether a room is still whole. So each
room keeps its contract suite on the local engine, the tests of its own rules, and a few of its real kills. What is
below runs in `make test-all`, which has everything. `make test-fast` is for each edit, and leaves out more.
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
        "tests/data/test_ray_examples.py",
        "tests/engine/ray/",
        "tests/ps/test_nodes.py",
        "tests/test_ray_page.py",
        "tests/train/test_cluster.py",
    ],
    FRAMEWORK: [
        "tests/collective/test_collective_contract.py::TestTorchOnHocket",
        "tests/collective/test_torch.py::test_the_compiler_leaves_it_alone",
        "tests/data/test_conversions.py::test_batches_of_tensorflow_and_tables",
        "tests/data/test_conversions.py::test_tensorflow_gets_a_dataset",
        "tests/mesh/test_jax.py",
        "tests/mesh/test_jax_processes.py",
        "tests/mesh/test_tensorflow.py",
        "tests/ps/test_datasets.py",
        "tests/ps/test_foreign.py",
        "tests/test_imports.py::test_workers_import_nothing_of_ours_after_their_fork[ranks of PyTorch]",
        "tests/test_internals.py",
        "tests/train/test_boosters.py",
        "tests/train/test_framework_contract.py::TestJax",
        "tests/train/test_framework_contract.py::TestKerasOnJax",
        "tests/train/test_framework_contract.py::TestKerasOnTensorflow",
        "tests/train/test_framework_contract.py::TestKerasOnTorch",
        "tests/train/test_framework_contract.py::TestTfKeras",
        "tests/train/test_guides_jax.py",
        "tests/train/test_guides_keras.py",
        "tests/train/test_horovod_keras.py",
        "tests/train/test_jax.py",
        "tests/train/test_keras.py::test_a_model_of_several_inputs_takes_a_list_of_arrays",
        "tests/train/test_keras.py::test_a_rank_without_rows_takes_no_step_of_its_own",
        "tests/train/test_keras.py::test_ranks_meet_after_their_steps_also_with_a_list_of_callbacks",
        "tests/train/test_keras.py::test_rows_count_where_a_part_of_the_model_is_prepared_too",
        "tests/train/test_keras.py::test_steps_by_batch_do_not_wait_for_each_other_where_one_rank_computes_at_a_time",
        "tests/train/test_keras.py::test_two_ranks_train_as_one_with_twice_the_batch",
        "tests/train/test_parameter_server_jax.py",
        "tests/train/test_parameter_server_keras.py",
        "tests/train/test_parameter_servers_tensorflow.py",
        "tests/train/test_safetensors.py",
        "tests/train/test_sharded_jax.py",
        "tests/train/test_sharded_keras.py",
        "tests/train/test_tensorflow.py",
        "tests/tune/test_integrations.py",
    ],
    MORE_CASES: [
        "tests/collective/test_against_gloo.py",
        "tests/collective/test_collective_contract.py::TestWorldOnTwoMachines",
        "tests/collective/test_torch.py::test_reductions_are_those_of_gloo",
        "tests/core/test_signals.py::test_random_programs_under_alarms",
        "tests/data/test_ledger.py::test_reading_ahead_is_reading_step_by_step",
        "tests/data/test_order.py::test_orders_are_even",
        "tests/data/test_s3.py",
        "tests/data/test_values.py::test_so_it_does_today",
        "tests/mesh/test_semantics.py::test_semantics[torch",
        "tests/mesh/test_torch.py::test_operations_and_gradients_are_those_of_one_process[3]",
        "tests/mesh/test_torch.py::test_reductions_of_cut_values_are_those_of_one_process",
        "tests/mesh/test_torch.py::test_relayouts_are_what_the_algebra_says",
        "tests/test_shared_results.py::test_nothing_is_written_where_another_user_leads",
        "tests/train/test_checkpoint_store_contract.py::TestOwnUpload",
        "tests/train/test_checkpoint_store_contract.py::TestSentFiles",
        "tests/train/test_checkpoint_store_contract.py::TestSharedFolder",
        "tests/train/test_checkpoint_store_contract.py::TestTrainerInTheBackground",
        "tests/train/test_classic_trainer.py",
        "tests/train/test_data_histories.py",
        "tests/train/test_loader_recovery.py",
        "tests/train/test_loaders.py::test_so_it_is_with_loader_processes",
        "tests/train/test_no_shared_folder.py",
        "tests/train/test_optimizer_oracle.py",
        "tests/train/test_own_strategy.py::test_it_computes_the_same_in_each_framework",
        "tests/train/test_rendezvous.py::test_ranks_that_are_not_with_the_driver_meet_at_rank_0[False]",
        "tests/train/test_sharded.py::test_a_recurrent_layer_and_gradients_of_two_batches",
        "tests/train/test_sharded.py::test_an_optimizer_goes_on_on_another_mesh",
        "tests/train/test_sharded.py::test_parts_of_a_model_and_copies",
        "tests/train/test_torch_tools.py",
        "tests/train/test_turns.py::test_weights_are_those_of_processes",
        "tests/train/test_unusual_loops.py::test_a_loop_is_one_process_with_the_whole_batch_or_refused[DiLoCo]",
        "tests/train/test_unusual_loops.py::test_a_loop_is_one_process_with_the_whole_batch_or_refused[LocalSGD]",
        "tests/train/test_unusual_loops.py::test_a_loop_on_servers_is_one_process_or_refused",
        "tests/train/test_unusual_loops.py::test_a_loop_over_a_spread_model_is_so_too",
        "tests/train/test_unusual_loops.py::test_the_net_finds_what_is_not_made_right",
        "tests/tune/test_odd_searches.py::test_pictures_of_odd_values",
        "tests/tune/test_optuna.py::test_a_search_resumed_anywhere_proposes_what_an_undisturbed_one_does",
        "tests/tune/test_optuna.py::test_a_storage_holds_each_trial_once_however_often_a_search_is_resumed",
        "tests/tune/test_schedulers_in_searches.py",
        "tests/tune/test_schedulers_pb2.py",
        "tests/tune/test_searches.py::test_a_sampler_that_learns_proposes_the_same_however_many_run",
        "tests/tune/test_searches.py::test_pictures",
        "tests/tune/test_simulation.py::test_ten_thousand_trials",
        "tests/tune/test_stored_searches.py",
        "tests/typing/",
    ],
    WHOLE_PROGRAM: [
        "tests/cli/test_run.py::test_a_group_of_gloo_is_never_destroyed",
        "tests/cli/test_run.py::test_every_backend_works_unchanged_in_two_launches_at_once",
        "tests/cli/test_run.py::test_scripts_that_ask_for_gloo_get_our_collectives",
        "tests/core/test_forks.py::test_child_ends_like_a_script",
        "tests/data/test_exact.py::test_an_evaluation_gives_the_metric_of_one_process",
        "tests/notebooks/",
        "tests/observe/test_odd_names.py::test_commands_show_a_session_with_odd_names",
        "tests/ps/test_recommender.py",
        "tests/reference/",
        "tests/test_first_use.py",
        "tests/test_parity.py",
        "tests/test_programs_page.py",
        "tests/test_repository.py::test_a_keras_example_runs",
        "tests/test_repository.py::test_the_example_of_datasets_runs",
        "tests/test_repository.py::test_the_example_of_searches_runs",
        "tests/test_repository.py::test_the_flax_example_runs",
        "tests/test_repository.py::test_the_training_example_runs",
        "tests/test_watch.py",
        "tests/train/test_demo.py::test_demo_as_it_is",
        "tests/train/test_demo.py::test_demo_that_is_ended_leaves_no_process",
        "tests/train/test_sharded.py::test_a_transformer_trains_as_in_one_process",
        "tests/train/test_stored_runs.py",
    ],
    MANY_KILLS: [
        "tests/cli/test_run.py::test_no_process_outlives_a_launcher_that_is_ended",
        "tests/core/test_deaths.py::test_calls_of_an_actor_that_is_built_again",
        "tests/core/test_deaths.py::test_tasks_that_are_tried_again",
        "tests/core/test_faults.py::test_retries_are_counted_exactly",
        "tests/core/test_faults.py::test_what_was_published_is_not_lost",
        "tests/core/test_flows.py::test_streams_go_on_whenever_their_workers_are_killed",
        "tests/core/test_random_programs.py",
        "tests/core/test_stopped.py",
        "tests/data/test_ledger.py::test_killed_runs_with_other_world_sizes_read_what_an_undisturbed_run_reads",
        "tests/data/test_pools.py::test_a_block_that_ends_its_actors_is_given_up",
        "tests/engine/test_fuzz.py",
        "tests/engine/test_store.py::test_random_use_over_the_limit",
        "tests/observe/test_dashboard.py::test_killed_driver_ends_it_too",
        "tests/ps/test_gate.py::test_a_worker_dies_at_any_line",
        "tests/ps/test_synchronous.py::test_a_synchronous_step_applies_the_mean_whoever_dies",
        "tests/stores/test_cut_short.py::test_one_is_left_wherever_a_write_that_replaces_it_is_killed",
        "tests/train/test_checkpoint_store_contract.py::TestStore",
        "tests/train/test_collective_faults.py",
        "tests/train/test_elastic.py::test_a_smaller_group_goes_on_after_a_failure",
        "tests/tune/test_faults.py",
        "tests/tune/test_restore.py::test_a_killed_driver_loses_and_repeats_nothing",
    ],
    PATIENCE: [
        "tests/cli/test_run.py::test_a_terminal_that_is_not_read_keeps_no_launch_from_its_end",
        "tests/collective/test_host_group.py::test_stacks_come_from_python_and_from_c_that_keeps_the_lock",
        "tests/core/test_ends.py::test_generator_that_nobody_reads_pauses_at_the_bound",
        "tests/data/test_memory.py",
        "tests/data/test_pools.py::test_a_pool_goes_on_with_the_actors_that_have_room",
        "tests/engine/test_events.py::test_overwritten_events_are_counted_on_the_timeline",
        "tests/engine/test_store.py::test_container_with_64_mb_of_dev_shm_holds_large_values",
        "tests/observe/test_dashboard.py::test_silent_connections_are_bounded_and_cut",
        "tests/ps/test_coordinator.py::test_nothing_is_kept_of_what_nobody_holds",
        "tests/ps/test_coordinator_life.py::test_ctrl_c_ends_a_wait",
        "tests/train/test_ended_ranks.py::test_a_rank_that_does_not_come_is_named_and_given_up",
        "tests/train/test_failures.py::test_an_exception_goes_before_the_reports_that_are_missing_because_of_it",
        "tests/train/test_preemption.py::test_the_driver_ends_though_it_goes_on",
        "tests/train/test_preemption.py::test_the_driver_ends_though_its_ranks_are_stopped",
    ],
}
"""Beginnings of the tests' names, by the reason."""


UNHURRIED: Mapping[str, Sequence[str]] = {
    "The in-process engine runs the same suite in a tenth of the time.": [
        "tests/engine/test_contract.py::TestLocal",
        "tests/train/test_strategy_contract.py",
    ],
    "It waits for processes: their starts, their kills, their memory.": [
        "tests/collective/test_host_group.py",
        "tests/core/test_faults.py",
        "tests/data/test_pools.py",
        "tests/engine/test_store.py",
        "tests/observe/test_dashboard.py",
        "tests/observe/test_top.py",
        "tests/ps/test_coordinator_life.py",
        "tests/stores/test_cut_short.py",
        "tests/test_shared_results.py",
        "tests/util/test_multiprocessing.py",
    ],
    "It reads all sources, or compares hundreds of cases.": [
        "tests/data/test_values.py",
        "tests/test_shared_places.py",
    ],
}
"""Those that `make test-fast` leaves out beside the thorough ones and those of frameworks, in the same form."""


def list_reasons(nodeid: str, lane: Mapping[str, Sequence[str]] = THOROUGH) -> Iterator[str]:
    """Yield why a test is thorough, or in another lane; nothing if it is not."""
    for reason, beginnings in lane.items():
        if nodeid.startswith(tuple(beginnings)):
            yield reason
