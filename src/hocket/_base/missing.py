"""Errors for names that Ray has and Hocket has not: each says what to write instead.

A test compares these tables with the texts of the pages `docs/coming_from/ray.md` and `docs/data_names.md`. A package
calls `explain` for its names. Python calls `Finder` for modules of this package that no other finder has found.

A missing attribute raises an AttributeError, for `hasattr` and for `getattr` with a default, but ``from hocket import
serve`` raises an ImportError. Python calls the module's ``__getattr__`` in both cases, and replaces the text of an
AttributeError at an import. So `_is_import` looks at the calling instruction.
"""

from __future__ import annotations

import dis
import functools
import importlib
import sys
import types
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final, TypeVar

from hocket._base import NoCollection

K = TypeVar("K", bound=type)

NAMES: Final[dict[str, dict[str, str]]] = {
    "hocket": {
        "ActorClassID ActorID FunctionID JobID NodeID PlacementGroupID TaskID UniqueID WorkerID": (
            "ids are text, with Ray's hex(), binary(), is_nil()"
        ),
        "ClientBuilder client": 'write hocket.init(address="ray://host:10001")',
        "Language cpp_function java_actor_class java_function": "Hocket runs Python only",
        "LoggingConfig": "use Python's logging; loggers are named hocket",
        "SCRIPT_MODE WORKER_MODE internal widgets": "internal to Ray",
        "autoscaler": "on a cluster, use Ray's own autoscaler",
        "workflow": "use checkpoints, or restore a search",
    },
    "hocket.exceptions": {
        "OufOfBandObjectRefSerializationException": (
            "a reference that you pickle yourself works in its own session; in another session get raises "
            "ObjectLostError"
        ),
        "PlasmaObjectNotAvailable UnserializableException": "internal to Ray",
        "RayCgraphCapacityExceeded RayChannelError RayChannelTimeoutError RayDirectTransportError": (
            "for compiled graphs, which Hocket does not have"
        ),
        "StreamingGeneratorReplayInconsistentError": (
            "a generator that is retried continues after the items that were read"
        ),
    },
    "hocket.util": {
        "accelerators get_node_instance_id": "use resources to name kinds of hardware",
        "connect disconnect": "write hocket.init, hocket.shutdown",
        "disable_log_once_globally enable_periodic_logging": "for Ray's own logs",
        "iter": "no longer documented in Ray; use a generator or hocket.data",
        "pdb ray_debugpy": "write breakpoint()",
    },
    "hocket.util.collective": {
        (
            "allgather_multigpu allreduce_multigpu broadcast_multigpu recv_multigpu reduce_multigpu "
            "reducescatter_multigpu send_multigpu"
        ): "each rank has one tensor, in its machine's memory; for GPUs use torch.distributed in each rank",
        "get_group_handle register_collective_backend": "for your own backends use torch.distributed",
    },
    "hocket.util.multiprocessing": {
        "JoinableQueue": "import it from multiprocessing, as Ray does",
    },
    "hocket.util.state": {
        "StateApiClient": "there is no server; call the functions of this module",
        "get_log list_logs": (
            "Hocket keeps no log files: workers print to the driver's terminal; see hocket.error_info()"
        ),
    },
    "hocket.train": {
        "NCCLHangError": "a rank that does not arrive causes a TrainingFailedError with its stack",
        "SyncConfig": "files are written directly to the storage path: RunConfig(storage_path=...)",
    },
    "Checkpoint": {
        "from_dict to_dict from_bytes to_bytes": (
            "a checkpoint is a folder of files, as in Ray: write files, then call Checkpoint.from_directory(path)"
        ),
    },
    "hocket.train.torch": {
        "TorchCheckpoint": "write torch.save and Checkpoint.from_directory",
    },
    "hocket.train.lightning": {
        "RayDeepSpeedStrategy RayFSDPStrategy": "not here; see sharding",
    },
    "hocket.train.tensorflow": {
        "TensorflowCheckpoint": "write model.save and Checkpoint.from_directory",
    },
    "hocket.train.xgboost": {
        "XGBoostCheckpoint": "write RayTrainReportCallback.get_model(checkpoint)",
    },
    "hocket.train.lightgbm": {
        "LightGBMCheckpoint": "write RayTrainReportCallback.get_model(checkpoint)",
        "normalize_pandas_for_lightgbm": "pass a pandas DataFrame with numpy's types: frame.astype(...)",
    },
    "hocket.tune": {
        "SyncConfig": "files are written directly to the storage path: RunConfig(storage_path=...)",
        "register_env": "for reinforcement learning, which Hocket does not have",
    },
    "hocket.tune.schedulers": {
        "ResourceChangingScheduler": (
            "a trial keeps the resources that it started with; pass the inner scheduler itself, and use "
            "tune.with_resources"
        ),
    },
    "hocket.tune.search": {
        "SearchGenerator": "pass the Searcher itself",
        "UNDEFINED_METRIC_MODE UNDEFINED_SEARCH_SPACE UNRESOLVED_SEARCH_SPACE": "texts internal to Ray",
        "grid_search": "write hocket.tune.grid_search",
    },
    "hocket.data": {
        (
            "Catalog CatalogAccessMode DatabricksUnityCatalog ReaderFormat ResolvedSource read_delta_sharing_tables "
            "read_unity_catalog"
        ): "get the list of files from the catalog, and read the files",
        "ClickHouseTableSettings SinkMode": "for a writer that Hocket does not have",
        "DatasetContext": "an older name of DataContext",
        "DatasetIterator": "an older name of DataIterator",
        "ExecutionResources": "the limits of an execution are in ExecutionOptions",
        "KafkaAuthConfig": "for a reader that Hocket does not have",
        "MixStoppingCondition": "alpha in Ray; write union, and random_shuffle or a local shuffle",
        "NodeIdStr": "one machine has no nodes to name",
        "from_daft from_dask from_mars from_modin": (
            "the data of another cluster; write Parquet files there and read them here, or use from_pandas or "
            "from_arrow"
        ),
        "list_stats_summaries": "the numbers of an execution are in Dataset.stats()",
        (
            "read_audio read_avro read_clickhouse read_delta read_hudi read_iceberg read_kafka read_lance "
            "read_lerobot read_mcap read_mongo read_snowflake read_videos read_zarr"
        ): "needs a library that is not part of the extra data; use the library in from_generators or a Datasource",
    },
    "Dataset": {
        "context": "the process has one DataContext",
        "copy": "write copy.copy(ds); a data set never changes",
        "deserialize_lineage has_serializable_lineage serialize_lineage": (
            "a data set is pickled whole: pickle.dumps(ds)"
        ),
        "get_dataset_id get_internal_block_refs iter_internal_ref_bundles map_batches_internal": "internal to Ray",
        "get_stats_summary": "the numbers of an execution are in Dataset.stats()",
        "mix": "alpha in Ray; write union, and random_shuffle or a local shuffle",
        "name set_name": "names are for Ray's dashboard",
        "to_daft to_dask to_mars to_modin": (
            "for another cluster; write Parquet files and read them there, or use to_pandas or to_arrow_refs"
        ),
        "to_random_access_dataset": "put the rows into a dict or a database",
        (
            "write_bigquery write_clickhouse write_delta write_iceberg write_kafka write_lance write_mongo "
            "write_snowflake write_turbopuffer"
        ): "needs a library that is not part of the extra data; use the library in a Datasink",
    },
    "GroupedData": {
        "with_column": "write map_groups",
    },
    "DataIterator": {
        "get_context": "the process has one DataContext",
        "stats": "call Dataset.stats of the whole data set",
        "to_torch": "legacy in Ray; write iter_torch_batches",
    },
    "hocket.data.aggregate": {
        "VectorizedAggregateFnV2": "internal to Ray",
    },
    "hocket.data.expressions": {
        "Operation": "internal to Ray",
        (
            "ColumnExpr LiteralExpr BinaryExpr RandomExpr UUIDExpr UnaryExpr UDFExpr DownloadExpr AliasExpr StarExpr "
            "UnnestExpr MonotonicallyIncreasingIdExpr"
        ): "all expressions are of the type Expr",
        "monotonically_increasing_id": "write ds.zip(data.range(ds.count()))",
        "random uuid": "draw random values in map_batches",
        "star": "with_columns keeps the existing columns",
        "unnest": 'write one expression for each field: col("d").struct.field("x")',
    },
    "hocket.data.datasource": {
        (
            "BaseFileMetadataProvider Connection DefaultFileMetadataProvider DummyOutputDatasink FileMetadataProvider "
            "PathPartitionParser RandomIntRowDatasource Reader WriteReturnType"
        ): "internal to Ray",
        "DeltaSharingDatasource LeRobotDatasource MCAPDatasource TimeRange": "for a reader that Hocket does not have",
        "FileBasedDatasource": "write a Datasource whose tasks read the files",
        "TurbopufferDatasink": "for a writer that Hocket does not have",
    },
}
"""The advice about names, by the module or the class that has them in Ray. Names with the same advice share a key."""

PARTS: Final[dict[str, str]] = {
    "hocket.serve": (
        "keep the model in an actor, and call a pool of such actors: hocket.util.ActorPool. For many rows, use "
        "Dataset.map_batches with a class"
    ),
    "hocket.rllib": "trials and ranks can run any library for reinforcement learning",
    "hocket.llm": "load the model in a class that Dataset.map_batches calls",
    "hocket.air": (
        "an older name; import RunConfig, ScalingConfig, Checkpoint and report from hocket.train or hocket.tune"
    ),
    (
        "hocket.experimental.channel hocket.experimental.collective hocket.experimental.compiled_dag_ref "
        "hocket.experimental.internal_kv hocket.experimental.rdt hocket.experimental.state"
    ): "experiments of Ray's; Hocket has no compiled graphs and channels. For the state API write hocket.util.state",
    "hocket.workflow": "use checkpoints, or restore a search",
    "hocket.job_submission": (
        "no server takes jobs; start the program with python or hocket run, on a cluster with ray job submit"
    ),
    "hocket.client": 'write hocket.init(address="ray://host:10001")',
    "hocket.cluster_utils": (
        'one machine has no nodes to add; in tests write hocket.init(num_cpus=4), or engine="inprocess"'
    ),
    "hocket.autoscaler": "on a cluster, use Ray's own autoscaler",
    "hocket.dashboard": "run the command hocket dashboard",
    "hocket.remote_function hocket.util.annotations": "internal to Ray; leave the import out",
    "hocket.runtime_context": "write hocket.get_runtime_context()",
    "hocket.types": "write hocket.ObjectRef",
    "hocket.data.extensions": (
        "columns hold arrays directly; for Arrow tables use DataType.tensor of hocket.data.datatype"
    ),
    "hocket.util.dask hocket.util.spark": (
        "the scheduler of another program; to exchange data use hocket.data.from_spark, hocket.spark or Parquet files"
    ),
    "hocket.util.iter": "no longer documented in Ray; use a generator or hocket.data",
    "hocket.tune.integration.keras": "call hocket.tune.report at the end of each epoch, in a keras.callbacks.Callback",
    "hocket.tune.examples hocket.tune.utils": "Ray's own examples and helpers; the guide on tune shows searches",
    "hocket.tune.search.variant_generator": "internal to Ray; write hocket.tune.grid_search or hocket.tune.choice",
    "hocket.tune.search.hyperopt": "write OptunaSearch(sampler=optuna.samplers.TPESampler()), the same algorithm",
    "hocket.tune.search.ax hocket.tune.search.bayesopt hocket.tune.search.hebo": (
        "write OptunaSearch(sampler=optuna.samplers.GPSampler()): Gaussian processes"
    ),
    "hocket.tune.search.bohb": (
        "write OptunaSearch(sampler=optuna.samplers.TPESampler(multivariate=True)), with HyperBandScheduler"
    ),
    "hocket.tune.search.nevergrad hocket.tune.search.zoopt": (
        "write OptunaSearch(sampler=optuna.samplers.CmaEsSampler()): search without gradients"
    ),
}
"""The advice about whole modules."""


def get_optional_reason(owner: str, name: str) -> str | None:
    """Return the advice about a name of Ray's; None if there is none.

    Args:
        owner: The module, or the class, in which the program looked for the name.
        name: The name.

    Example:
        >>> from hocket._base import missing
        >>> missing.get_optional_reason("hocket.tune", "register_env")
        'for reinforcement learning, which Hocket does not have'
    """
    found = [said for names, said in NAMES.get(owner, {}).items() if name in names.split()]
    found += [said for names, said in PARTS.items() if f"{owner}.{name}" in names.split()]
    return found[0] if found else None


def explain(module: str, later: Collection[str] = ()) -> None:
    """Have a package load its names on first use, and explain the names of Ray's that it lacks.

    The package's own code calls this. A name that the code imports under ``TYPE_CHECKING`` is imported on first use: a
    program pays only for the names that it uses.

    Args:
        module: The package's name.
        later: Further modules of the package to load on first use, which its code does not import.
    """
    # At run time only: a type checker that saw a `__getattr__` would accept every wrong name.
    package, code = sys.modules[module], sys._getframe(1).f_code
    list_later = functools.cache(lambda: {**_list_imports(code), **{name: (module, name) for name in later}})

    def find(name: str) -> Any:
        if name == "__all__":  # for ``from package import *``, which must not load the other packages
            here = {name for name, value in vars(package).items() if not isinstance(value, types.ModuleType)}
            named = {name for name, (origin, _) in list_later().items() if origin != module}
            return sorted(name for name in here | named if name[0] != "_")
        if name.startswith("__") or name not in list_later():
            raise build_error(package, name, sys._getframe(1))
        origin, original = list_later()[name]
        with NoCollection():
            if origin == module:
                return importlib.import_module(f"{module}.{original}")
            found = vars(package)[name] = getattr(importlib.import_module(origin), original)
        return found

    def list_names() -> list[str]:
        rooms = types.ModuleType if module == "hocket" else ()  # the root's other modules are internal
        return sorted({name for name, value in vars(package).items() if not isinstance(value, rooms)} | {*list_later()})

    vars(package).update(__getattr__=find, __dir__=list_names)


def _list_imports(code: types.CodeType) -> dict[str, tuple[str, str]]:
    """Return the names that a module's code imports, run or not, and second names for them (``B = A``).

    Returns:
        By the name here: the module that has it, and its name there.
    """
    # Read from the code object, which exists even where the source does not.
    found: dict[str, tuple[str, str]] = {}
    origin, held = "", None
    for instruction in dis.get_instructions(code):
        match instruction.opname:
            case "IMPORT_NAME":
                origin = instruction.argval
            case "IMPORT_FROM":
                held = origin, instruction.argval
            case "LOAD_NAME":
                held = found.get(instruction.argval)
            case "STORE_NAME" if held is not None:
                found[instruction.argval], held = held, None
            case name if name != "EXTENDED_ARG":
                held = None
    return found


def build_error(module: types.ModuleType, name: str, asker: types.FrameType) -> AttributeError | ImportError:
    """Return the error for a name that a module does not have, as the frame needs it that looks the name up."""
    reason = get_optional_reason(module.__name__, name)
    if reason is None:
        # From the name and the module, Python can add "Did you mean".
        return AttributeError(f"module {module.__name__!r} has no attribute {name!r}", name=name, obj=module)
    text = f"{module.__name__} has no {name}, which Ray has: {reason}."
    return ImportError(text, name=module.__name__) if _is_import(asker) else AttributeError(text)


def _is_import(frame: types.FrameType) -> bool:
    """Return whether a frame stands at the instruction behind ``from module import name``."""
    return frame.f_lasti >= 0 and frame.f_code.co_code[frame.f_lasti] == dis.opmap["IMPORT_FROM"]


def explain_attributes(kind: K) -> K:
    """Have instances of a class explain missing methods that Ray has; see `explain`."""

    def tell(self: object, name: str) -> object:
        raise _build_attribute_error(kind.__name__, name, self, f"{type(self).__name__!r} object")

    kind.__getattr__ = tell  # type: ignore[attr-defined]  # as in `explain`
    return kind


class Explaining(type):
    """The metaclass of a class that itself explains missing methods that Ray has, as its instances do."""

    if not TYPE_CHECKING:  # as in `explain`

        def __getattr__(cls, name: str) -> object:
            raise _build_attribute_error(cls.__name__, name, cls, f"type object {cls.__name__!r}")


def _build_attribute_error(owner: str, name: str, value: object, shown: str) -> AttributeError:
    reason = get_optional_reason(owner, name)
    if reason is None:
        return AttributeError(f"{shown} has no attribute {name!r}", name=name, obj=value)
    return AttributeError(f"{owner} has no {name}, which Ray has: {reason}.")


class Finder:
    """A finder for ``sys.meta_path`` that finds no module, but explains missing modules that Ray has."""

    @staticmethod
    def find_spec(fullname: str, *_: object) -> None:
        """Raise for a module that Ray has and Hocket has not."""
        if not fullname.startswith("hocket."):
            return
        package, name = fullname.rpartition(".")[::2]
        reason = get_optional_reason(package, name)
        if reason is not None:
            raise ModuleNotFoundError(f"There is no module {fullname}, which Ray has: {reason}.", name=fullname)


def install() -> None:
    """Have Python call `Finder` for modules that no other finder has found."""
    sys.meta_path.append(Finder)
