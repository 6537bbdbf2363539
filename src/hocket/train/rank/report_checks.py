"""What `report` looks at before it does anything."""

from __future__ import annotations

from hocket.stores import names
from hocket.train.checkpoints import checkpoint as checkpoint_module
from hocket.train.checkpoints import storage, uploads


def check_checkpoint(checkpoint: object, dir_name: str | None) -> None:
    """Raise if it is nothing that `report` takes as a checkpoint.

    Args:
        checkpoint: What was given; None for nothing.
        dir_name: The name that its folder is to have.
    """
    if checkpoint is not None and not isinstance(checkpoint, checkpoint_module.Checkpoint):
        raise TypeError(
            f"report() takes a Checkpoint, but received {checkpoint!r}. Write Checkpoint.from_directory(path) for a "
            "folder."
        )
    if checkpoint is not None and checkpoint.place is not None:
        raise ValueError(
            f"report() takes a checkpoint in a folder of this machine, but received {checkpoint!r} of a store. "
            "Write with checkpoint.as_directory() as folder: report(metrics, checkpoint=Checkpoint(folder)); what is "
            "reported goes to the run's own store, RunConfig(storage_path=...)."
        )
    if dir_name is not None and (names.find_fault(dir_name) or "/" in dir_name or dir_name.startswith(".")):
        raise ValueError(
            "checkpoint_dir_name must be the name of one folder that does not start with '.', but received "
            f"{dir_name!r}. Leave it out for a numbered one."
        )


def list_expected(checkpoint: checkpoint_module.Checkpoint, upload: uploads.Upload) -> list[str]:
    """Return the files that must be there when an asynchronous upload comes to them."""
    if upload.stays or not upload.is_asynchronous:
        return []
    storage.check_source(checkpoint.path)
    return storage.list_contents(checkpoint.path)[1]
