"""Each public name that needs a session opens one: no program has to begin with `init`.

The tables name every public function and class of the libraries, and every method of a data set. A name without a row
fails `test_each_name_has_a_row`, so a new function needs a program here, or a word on why it opens no session.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import itertools
import re
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import hocket
import hocket.dag
import hocket.util.joblib
import hocket.util.multiprocessing
import hocket.util.queue
import hocket.util.state
from hocket import collective, data, exceptions, ps, train, tune, util
from hocket.data import block
from tests import conftest

ENGINES = ["local", "inprocess"] if conftest.ENGINE == "local" else [conftest.ENGINE]

Program = Callable[[Path], object]

pytestmark = pytest.mark.timeout(120)


# --- functions and classes that users hand in -------------------------------------------------------------------------


@hocket.remote
def add(x: int, y: int = 1) -> int:
    return x + y


@hocket.remote
def count() -> Iterator[int]:
    yield from range(3)


class Total:
    def __init__(self) -> None:
        self.count = 0

    def add(self, amount: int) -> int:
        self.count += amount
        return self.count


Counter = hocket.remote(Total)


class Added:
    """A class for a pool of actors."""

    def __init__(self) -> None:
        self.offset = 1

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {"id": batch["id"] + self.offset}


class Sink(data.Datasink):
    def write(self, blocks: object, ctx: object = None) -> int:
        return 1


class Source(data.Datasource):
    def get_read_tasks(self, parallelism: int, *more: object, **others: object) -> list[data.ReadTask]:
        return [data.ReadTask(lambda: [pa.table({"id": [1, 2]})], block.BlockMetadata(2, None, None, None))]

    def estimate_inmemory_data_size(self) -> int | None:
        return None


def add_one(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {"id": batch["id"] + 1}


def report_rows() -> None:
    train.report({"rows": sum(len(batch["id"]) for batch in train.get_dataset_shard("train").iter_batches())})


def score(config: dict[str, float]) -> None:
    tune.report({"score": config["x"]})


async def await_one() -> object:
    return await add.remote(1)


def make_rows() -> data.Dataset:
    """Return a data set that has to be worked on: ids from 1 to 10."""
    return data.range(10).map_batches(add_one)


# --- programs of more than a line -------------------------------------------------------------------------------------


def use_pool(_: Path) -> object:
    with hocket.util.multiprocessing.Pool(1) as pool:
        return pool.map(abs, [-1, -2])


def use_joblib(_: Path) -> object:
    joblib: Any = importlib.import_module("joblib")
    hocket.util.joblib.register_hocket()
    with joblib.parallel_backend("hocket"):
        return joblib.Parallel(n_jobs=2)(joblib.delayed(abs)(x) for x in (-1, -2))


def use_queue(_: Path) -> object:
    queue = hocket.util.queue.Queue()
    queue.put(1)
    return queue.get()


def use_servers(_: Path) -> object:
    with contextlib.closing(ps.ParameterServerStrategy(ps.Cluster(workers=1, servers=1))) as strategy, strategy.scope():
        return int(ps.Variable(3)) == 3


def use_coordinator(_: Path) -> object:
    with contextlib.closing(ps.ParameterServerStrategy(ps.Cluster(workers=1, servers=1))) as strategy:
        coordinator = ps.Coordinator(strategy)
        coordinator.schedule(abs, args=(-1,))
        return coordinator.join() == 1


def use_node(_: Path) -> object:
    with hocket.dag.InputNode() as given:
        node = add.bind(given)
    return hocket.get(node.execute(1))


def use_actors(_: Path) -> object:
    return list(util.ActorPool([Counter.remote()]).map(lambda actor, amount: actor.add.remote(amount), [1, 2]))


def use_actor_group(_: Path) -> object:
    group = util.ActorGroup(Added, 1, num_cpus_per_actor=1)
    group.shutdown()
    return group


def look_up_actor(_: Path) -> None:
    with pytest.raises(ValueError, match="Failed to look up actor with name 'nobody'"):
        hocket.get_actor("nobody")


def look_up_placement_group(_: Path) -> None:
    with pytest.raises(ValueError, match="nobody"):
        util.get_placement_group("nobody")


def use_placement_group(_: Path) -> object:
    group = util.placement_group([{"CPU": 1}])
    assert group.wait(60)
    util.remove_placement_group(group)
    return group


def use_trainer(folder: Path) -> object:
    scaling, run = train.ScalingConfig(num_workers=1), train.RunConfig(name="rows", storage_path=str(folder / "runs"))
    trainer = train.DataParallelTrainer(
        report_rows, scaling_config=scaling, run_config=run, datasets={"train": make_rows()}
    )
    return trainer.fit().metrics == {"rows": 10}


def use_classic_trainer(folder: Path) -> object:
    trainer = train.Trainer(train.BackendConfig(), num_workers=1, logdir=str(folder / "classic"))
    trainer.start()
    found = trainer.run(lambda: 1)
    trainer.shutdown()
    return found == [1]


def use_tuner(folder: Path) -> object:
    run = tune.RunConfig(name="search", storage_path=str(folder / "runs"))
    return len(tune.Tuner(score, param_space={"x": tune.grid_search([1.0, 2.0])}, run_config=run).fit()) == 2


def write_sql(folder: Path) -> object:
    place = str(folder / "new.db")
    with contextlib.closing(sqlite3.connect(place)) as opened:
        opened.execute("create table numbers (id integer)")
    make_rows().write_sql("insert into numbers values (?)", lambda: sqlite3.connect(place))
    return True


# --- the tables -------------------------------------------------------------------------------------------------------

PROGRAMS: dict[str, Program] = {
    "hocket.ActorClass": lambda _: hocket.get(Counter.remote().add.remote(1)),
    "hocket.ActorHandle": lambda _: hocket.get(Counter.options(num_cpus=1).remote().add.remote(1)),
    "hocket.ObjectRef": lambda _: asyncio.run(await_one()),
    "hocket.ObjectRefGenerator": lambda _: hocket.get(list(count.remote())),
    "hocket.RemoteFunction": lambda _: hocket.get(add.options(name="one").remote(1)),
    "hocket.cancel": lambda _: hocket.cancel(add.remote(1)),
    "hocket.get": lambda _: hocket.get([]),
    "hocket.get_actor": look_up_actor,
    "hocket.get_gpu_ids": lambda _: hocket.get_gpu_ids(),
    "hocket.get_runtime_context": lambda _: hocket.get_runtime_context(),
    "hocket.init": lambda _: hocket.init(),
    "hocket.kill": lambda _: hocket.kill(Counter.remote()),
    "hocket.put": lambda _: hocket.put(1),
    "hocket.remote": lambda _: hocket.get(add.remote(1)),
    "hocket.wait": lambda _: hocket.wait([add.remote(1)]),
    "hocket.collective.create_collective_group": lambda _: collective.create_collective_group([Counter.remote()], 1, [0]),
    "hocket.dag.DAGNode": use_node,
    "hocket.ps.Coordinator": use_coordinator,
    "hocket.ps.ParameterServerStrategy": use_servers,
    "hocket.train.DataParallelTrainer": use_trainer,
    "hocket.train.Trainer": use_classic_trainer,
    "hocket.tune.Tuner": use_tuner,
    "hocket.tune.run": lambda at: tune.run(score, config={"x": 1.0}, name="run", storage_path=str(at / "runs")),
    "hocket.tune.run_experiments": lambda at: tune.run_experiments(
        tune.Experiment("experiment", score, config={"x": 1.0}, storage_path=str(at / "runs"))
    ),
    "hocket.util.ActorGroup": use_actor_group,
    "hocket.util.ActorPool": use_actors,
    "hocket.util.as_completed": lambda _: list(util.as_completed([add.remote(1)])),
    "hocket.util.get_current_placement_group": lambda _: util.get_current_placement_group(),
    "hocket.util.get_placement_group": look_up_placement_group,
    "hocket.util.map_unordered": lambda _: list(util.map_unordered(add, [1, 2])),
    "hocket.util.placement_group": use_placement_group,
    "hocket.util.placement_group_table": lambda _: util.placement_group_table(),
    "hocket.util.joblib.register_hocket": use_joblib,
    "hocket.util.multiprocessing.Pool": use_pool,
    "hocket.util.queue.Queue": use_queue,
    # --- reading
    "hocket.data.from_arrow_refs": lambda _: data.from_arrow_refs([hocket.put(pa.table({"a": [1]}))]).take_all(),
    "hocket.data.from_generators": lambda _: data.from_generators([lambda: iter([{"a": 1}])]).take_all(),
    "hocket.data.read_binary_files": lambda at: data.read_binary_files(f"{at}/a.txt").take_all(),
    "hocket.data.read_csv": lambda at: data.read_csv(f"{at}/csv").materialize(),
    "hocket.data.read_datasource": lambda _: data.read_datasource(Source()).take_all(),
    "hocket.data.read_images": lambda at: data.read_images(f"{at}/images").take_all(),
    "hocket.data.read_json": lambda at: data.read_json(f"{at}/json").take_all(),
    "hocket.data.read_numpy": lambda at: data.read_numpy(f"{at}/numpy").take_all(),
    "hocket.data.read_orc": lambda at: data.read_orc(f"{at}/orc").take_all(),
    "hocket.data.read_parquet": lambda at: data.read_parquet(f"{at}/parquet").take_all(),
    "hocket.data.read_sql": lambda at: data.read_sql(
        "select * from numbers", lambda: sqlite3.connect(f"{at}/rows.db")
    ).take_all(),
    "hocket.data.read_text": lambda at: data.read_text(f"{at}/a.txt").take_all(),
    "hocket.data.read_tfrecords": lambda at: data.read_tfrecords(f"{at}/tfrecords").take_all(),
    "hocket.data.read_webdataset": lambda at: data.read_webdataset(f"{at}/webdataset").take_all(),
    # --- a data set's own methods
    "Dataset.aggregate": lambda _: make_rows().aggregate(data.aggregate.Sum("id")),
    "Dataset.count": lambda _: make_rows().filter(lambda row: row["id"] > 2).count(),
    "Dataset.iter_batches": lambda _: list(make_rows().iter_batches()),
    "Dataset.iter_jax_batches": lambda _: list(make_rows().iter_jax_batches()),
    "Dataset.iter_rows": lambda _: list(make_rows().iter_rows()),
    "Dataset.iter_torch_batches": lambda _: list(make_rows().iter_torch_batches()),
    "Dataset.iterator": lambda _: list(make_rows().iterator().iter_batches()),
    "Dataset.map_batches": lambda _: data.range(10).map_batches(Added, concurrency=1).take_all(),
    "Dataset.materialize": lambda _: make_rows().materialize(),
    "Dataset.max": lambda _: make_rows().max("id"),
    "Dataset.mean": lambda _: make_rows().mean("id"),
    "Dataset.min": lambda _: make_rows().min("id"),
    "Dataset.num_blocks": lambda _: make_rows().materialize().num_blocks(),
    "Dataset.schema": lambda _: make_rows().schema(),
    "Dataset.show": lambda _: make_rows().show(),
    "Dataset.size_bytes": lambda _: make_rows().size_bytes(),
    "Dataset.split": lambda _: make_rows().split(2),
    "Dataset.split_at_indices": lambda _: make_rows().split_at_indices([3]),
    "Dataset.split_proportionately": lambda _: make_rows().split_proportionately([0.5]),
    "Dataset.std": lambda _: make_rows().std("id"),
    "Dataset.streaming_split": lambda _: [list(one.iter_batches()) for one in make_rows().streaming_split(1)],
    "Dataset.sum": lambda _: make_rows().sum("id"),
    "Dataset.summary": lambda _: make_rows().summary(),
    "Dataset.take": lambda _: make_rows().take(),
    "Dataset.take_all": lambda _: make_rows().take_all(),
    "Dataset.take_batch": lambda _: make_rows().take_batch(),
    "Dataset.to_arrow": lambda _: make_rows().to_arrow(),
    "Dataset.to_arrow_refs": lambda _: make_rows().to_arrow_refs(),
    "Dataset.to_numpy_refs": lambda _: make_rows().to_numpy_refs(),
    "Dataset.to_pandas": lambda _: make_rows().to_pandas(),
    "Dataset.to_pandas_refs": lambda _: make_rows().to_pandas_refs(),
    "Dataset.train_test_split": lambda _: make_rows().train_test_split(0.5),
    "Dataset.unique": lambda _: make_rows().unique("id"),
    "Dataset.write_csv": lambda at: make_rows().write_csv(f"{at}/new_csv"),
    "Dataset.write_datasink": lambda _: make_rows().write_datasink(Sink()),
    "Dataset.write_images": lambda at: make_images().map_batches(lambda batch: batch).write_images(f"{at}/new_images", "image"),
    "Dataset.write_json": lambda at: make_rows().write_json(f"{at}/new_json"),
    "Dataset.write_numpy": lambda at: make_rows().write_numpy(f"{at}/new_numpy", column="id"),
    "Dataset.write_orc": lambda at: make_rows().write_orc(f"{at}/new_orc"),
    "Dataset.write_parquet": lambda at: make_rows().write_parquet(f"{at}/new_parquet"),
    "Dataset.write_sql": write_sql,
    "Dataset.write_tfrecords": lambda at: make_rows().write_tfrecords(f"{at}/new_tfrecords"),
    "Dataset.write_webdataset": lambda at: make_samples().map_batches(lambda batch: batch).write_webdataset(f"{at}/new_webdataset"),
    # --- what only adds to a plan is executed behind it
    "Dataset.add_column": lambda _: make_rows().add_column("two", lambda batch: batch["id"] * 2).take_all(),
    "Dataset.drop_columns": lambda _: make_rows().with_column("two", data.expressions.col("id")).drop_columns(["two"]).take_all(),
    "Dataset.filter": lambda _: data.range(10).filter(lambda row: row["id"] > 2).take_all(),
    "Dataset.flat_map": lambda _: data.range(10).flat_map(lambda row: [row, row]).take_all(),
    "Dataset.groupby": lambda _: make_rows().groupby("id").count().take_all(),
    "Dataset.join": lambda _: make_rows().join(make_rows(), "inner", 1, ("id",)).take_all(),
    "Dataset.limit": lambda _: make_rows().limit(3).take_all(),
    "Dataset.map": lambda _: data.range(10).map(lambda row: row).take_all(),
    "Dataset.random_sample": lambda _: make_rows().random_sample(0.5).take_all(),
    "Dataset.random_shuffle": lambda _: make_rows().random_shuffle().take_all(),
    "Dataset.randomize_block_order": lambda _: make_rows().randomize_block_order().take_all(),
    "Dataset.rename_columns": lambda _: make_rows().rename_columns({"id": "x"}).take_all(),
    "Dataset.repartition": lambda _: make_rows().repartition(3).take_all(),
    "Dataset.select_columns": lambda _: make_rows().select_columns(["id"]).take_all(),
    "Dataset.sort": lambda _: make_rows().sort("id").take_all(),
    "Dataset.union": lambda _: make_rows().union(make_rows()).take_all(),
    "Dataset.with_column": lambda _: make_rows().with_column("two", data.expressions.col("id") * 2).take_all(),
    "Dataset.with_columns": lambda _: make_rows().with_columns({"two": data.expressions.col("id") * 2}).take_all(),
    "Dataset.zip": lambda _: make_rows().zip(make_rows().rename_columns({"id": "x"})).take_all(),
    "GroupedData.map_groups": lambda _: make_rows().groupby("id").map_groups(lambda rows: rows).take_all(),
    "Preprocessor.fit": lambda _: data.preprocessors.StandardScaler(["id"]).fit(make_rows()),
    "Preprocessor.fit_transform": lambda _: data.preprocessors.StandardScaler(["id"]).fit_transform(make_rows()).take_all(),
}  # fmt: skip
"""What begins each name's program; it starts without a session."""

STREAMS = ("count", "iter_batches", "map_batches", "sort", "streaming_split", "to_arrow_refs", "write_parquet")
"""Methods of a data set that run on each engine; the others stand on these."""

ASK = {
    "hocket.available_resources": hocket.available_resources,
    "hocket.cluster_resources": hocket.cluster_resources,
    "hocket.nodes": hocket.nodes,
    "hocket.timeline": hocket.timeline,
    "hocket.util.list_named_actors": util.list_named_actors,
    **{
        f"hocket.util.state.{name}": getattr(hocket.util.state, name)
        for name in vars(hocket.util.state)
        if re.match("list_(?!log)|summarize_", name)
    },
}
"""What tells of an open session, and refuses without one, as in Ray."""

NOTHING = {
    "hocket": "method RuntimeContext DynamicObjectRefGenerator SessionContext is_initialized shutdown TypedActor "
    "ObjectID error_info",
    "hocket.collective": "allgather allreduce barrier broadcast destroy_collective_group get_collective_group_size "
    "get_rank init_collective_group is_backend_available is_group_initialized recv reduce reducescatter send ReduceOp",  # called in workers
    "hocket.dag": "ClassMethodNode ClassNode FunctionNode InputAttributeNode InputNode MultiOutputNode",
    "hocket.data": "Schema ActorPoolStrategy TaskPoolStrategy DatasetSummary from_arrow from_blocks from_huggingface "
    "from_items from_numpy from_numpy_refs from_pandas from_pandas_refs from_spark from_tf from_torch range "
    "range_tensor Dataset ExactMean Ledger Slice RandomSeedConfig Preprocessor DataContext ExecutionOptions "
    "DataIterator FileShuffleConfig Datasink Datasource ReadTask BlockBasedFileDatasink RowBasedFileDatasink SaveMode "
    "GroupedData",
    "hocket.mesh": "export load save DTensorDataset LayoutMap Layout Partial Replicate Shard Mesh barrier "
    "call_with_layout check_layout copy_to_mesh create_distributed_mesh create_mesh default_mesh fetch_layout "
    "get_default_mesh is_dtensor local_device_ids local_device_locations pack relayout relayout_like unpack visualize "
    "Plan Step plan_relayout DTensor Explanation ParameterRow distribute explain DVariable Function function "
    "value_and_gradients",
    "hocket.ps": "load_checkpoint get_current_worker_index Cluster ClusterTask Embedding IndexedSlices "
    "SidecarEvaluator Constant Initializer Normal Uniform Zeros FTRL SGD Adagrad Adam Optimizer FixedShards MaxSize "
    "MinSize Partitioner Eviction SimpleClusterResolver TFConfigClusterResolver get_strategy Snapshot RemoteStrategy "
    "InputContext ShardedVariable Variable ClusterSpec ClusterCoordinator FixedShardsPartitioner MinSizePartitioner "
    "MaxSizePartitioner",
    "hocket.train": "Checkpoint CheckpointConsistencyMode CheckpointUploadMode ReportedCheckpoint "
    "ReportedCheckpointStatus CheckpointStrategy load_checkpoint local_rank save_checkpoint world_rank world_size "
    "TrainingIterator TrainingCallback CheckpointConfig DivergenceConfig FailureConfig LoggingConfig RunConfig ScalingConfig "
    "PreemptionInfo ProgressDisplay TrainContext get_all_reported_checkpoints get_checkpoint get_context "
    "get_preemption_info report DataConfig get_dataset_shard ShardingBytes ShardingUsage Result BackendConfig "
    "EarlyStopping TimeLimit TrainRunContext UserCallback ValidationConfig ValidationFn ValidationTaskConfig",
    "hocket.tune": "Checkpoint Callback CheckpointConfig FailureConfig ResumeConfig RunConfig TuneConfig TuneContext "
    "get_checkpoint get_context report ExperimentAnalysis Experiment register_trainable CLIReporter "
    "JupyterNotebookReporter ProgressReporter PlacementGroupFactory with_resources Result ResultGrid create_scheduler "
    "create_searcher choice grid_search lograndint loguniform qlograndint qloguniform qrandint qrandn quniform randint "
    "randn sample_from uniform Stopper Trainable with_parameters",
    "hocket.util": "inspect_serializability get_node_ip_address log_once PlacementGroup remove_placement_group "
    "deregister_serializer register_serializer",
    "hocket.util.joblib": "register_ray",
    "hocket.util.metrics": "Metric Counter Gauge Histogram render_prometheus list_families build_label",
    "hocket.util.multiprocessing": "AsyncResult IMapIterator",
    "hocket.util.queue": "Empty Full QueueActor",
    "hocket.util.state": "StateRecord TaskState ActorState WorkerState ObjectState NodeState JobState "
    "PlacementGroupState RuntimeEnvState ClusterEventState get_task get_actor get_worker get_node get_job "
    "get_placement_group get_objects list_logs get_log",  # they stand on the functions that list
    "Dataset": "build_source columns explain input_files iter_tf_batches stats streaming_train_test_split to_spark "
    "to_tf",  # some take seconds to import TensorFlow, and stand on iter_batches
    "GroupedData": "aggregate count max mean min std sum",  # each is an aggregate
    "Preprocessor": "FitStatus deserialize fit_status get_input_columns get_output_columns has_been_fitted load save "
    "serialize transform transform_batch transform_row",
}
"""Names that say something, or do their work in a worker or on what another name has made."""

TRAINERS = {
    "torch": "TorchTrainer",
    "jax": "JaxTrainer",
    "keras": "KerasTrainer",
    "tensorflow": "TensorflowTrainer",
    "xgboost": "XGBoostTrainer",
    "lightgbm": "LightGBMTrainer",
}
"""They have no `fit` of their own, so the row of `DataParallelTrainer` is theirs."""


def make_images() -> data.Dataset:
    return data.from_numpy({"image": np.zeros((2, 4, 4, 3), np.uint8)})


def make_samples() -> data.Dataset:
    return data.from_items([{"__key__": "0", "txt": "a"}])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with files of all formats."""
    path = tmp_path_factory.mktemp("first")
    (path / "a.txt").write_text("a\nb\n")
    with contextlib.closing(sqlite3.connect(path / "rows.db")) as opened, opened:
        opened.execute("create table numbers (id integer)")
        opened.execute("insert into numbers values (1)")
    with hocket.init(engine="inprocess"):
        for kind in ("csv", "json", "orc", "parquet", "tfrecords"):
            getattr(data.range(10), f"write_{kind}")(str(path / kind))
        data.range(10).write_numpy(str(path / "numpy"), column="id")
        make_images().write_images(str(path / "images"), "image")
        make_samples().write_webdataset(str(path / "webdataset"))
    return path


@pytest.fixture(params=ENGINES)
def engine(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, shared_ray: conftest.SharedRay
) -> Iterator[str]:
    """The name of the engine that a first use opens; none is open, and none is left."""
    monkeypatch.setenv("HOCKET_ENGINE", request.param)
    with shared_ray.lend() if request.param == "ray" else contextlib.nullcontext():
        assert not hocket.is_initialized()
        try:
            yield request.param
        finally:
            hocket.shutdown()


def list_names(place: str) -> set[str]:
    """Return the public functions and classes of a module, or of a class of `hocket.data`, but for errors."""
    if not place.startswith("hocket"):
        return {f"{place}.{name}" for name in dir(getattr(data, place)) if not name.startswith("_")}
    module = importlib.import_module(place)
    return {
        f"{place}.{name}"
        for name in dir(module)
        for value in [getattr(module, name)]
        if (inspect.isclass(value) or inspect.isroutine(value) or isinstance(value, hocket.RemoteFunction))
        and not name.startswith("_")
        and value.__module__.startswith("hocket")
        and not name.endswith(("Error", "Failures"))
    }


@pytest.mark.parametrize("place", NOTHING)
def test_each_name_has_a_row(place: str) -> None:
    rows = {name for name in (*PROGRAMS, *ASK) if name.rpartition(".")[0] == place}
    rows |= {f"{place}.{name}" for name in NOTHING[place].split()}
    assert rows ^ list_names(place) == set()


def list_runs() -> Iterator[tuple[str, str]]:
    """Return which programs run on which engine: all on the one that starts no process, where there is one."""
    for at, name in itertools.product(ENGINES, PROGRAMS):
        if name.startswith("hocket") or name.partition(".")[2] in STREAMS or at == "inprocess":
            yield at, name


@pytest.mark.parametrize(("engine", "name"), list(list_runs()), indirect=["engine"])
def test_a_first_use_opens_a_session(name: str, engine: str, folder: Path, tmp_path: Path) -> None:
    for path in folder.iterdir():
        (tmp_path / path.name).symlink_to(path)
    assert PROGRAMS[name](tmp_path) is not False
    assert hocket.is_initialized()
    assert hocket.init(ignore_reinit_error=True)["engine"] == engine


@pytest.mark.parametrize("name", ASK)
def test_what_tells_of_a_session_opens_none(name: str, engine: str) -> None:
    with pytest.raises(exceptions.SessionClosedError, match=r"No session is open\. Call hocket\.init\(\) first"):
        ASK[name]()
    assert not hocket.is_initialized()


def test_a_first_use_after_shutdown_opens_a_new_session(engine: str) -> None:
    first = hocket.put(1)
    hocket.shutdown()
    assert data.range(10).map_batches(Added, concurrency=1).count() == 10
    with pytest.raises(exceptions.HocketError, match="session"):
        hocket.get(first)


def test_trainers_share_the_way_to_open_a_session() -> None:
    for place, name in TRAINERS.items():
        trainer = getattr(importlib.import_module(f"hocket.train.{place}"), name)
        assert trainer.fit is train.DataParallelTrainer.fit, name
