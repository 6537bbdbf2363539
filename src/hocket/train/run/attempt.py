"""One attempt of a run: a group of ranks from its start to its end, and the driver's state for it."""

from __future__ import annotations

import os
from typing import final

from hocket.core import api
from hocket.train.checkpoints import storage
from hocket.train.rank import rank_info
from hocket.train.run import (
    divergence,
    preemption_policy,
    question_resolver,
    roles,
    training_run,
    validation_queue,
    worker_group,
)

ALWAYS_SENDS = os.environ.get("HOCKET_TRAIN_SEND_FILES", "0") == "1"
"""Whether files travel through the driver even if ranks see the run's folder. This is for shared file systems that are
slower or less reliable than the way to the driver. Default: no."""


@final
class Attempt:
    """One start of a run's ranks. Used by one thread."""

    def __init__(
        self,
        run: training_run.Run,
        number: int,
        group: worker_group.WorkerGroup,
        work: worker_group.Ref,
        validations: validation_queue.ValidationQueue | None,
    ) -> None:
        self.run = run
        self.number = number
        self.group = group
        self.validations = validations
        self._work = work
        self.num_reporting = roles.count_reporting(group.roles, len(group))
        run.book.begin_attempt(self.num_reporting)
        placed = group.places[: self.num_reporting]
        run.book.log.place(
            [place.introduction.pid for place in placed],
            [place.node_id for place in placed],
            api.get_runtime_context().get_node_id(),
        )
        self.token = storage.leave_token(run.run_storage)
        """The token by which ranks recognize the run's folder. It also marks the attempt's names."""
        held = roles.sum_bundles([role.bundle for role in group.roles]) or run.scaling.multiply(len(group))
        obstacle = validations.find_obstacle(held) if validations else ""
        grace = run.config.failure_config.preemption_grace_s
        self.preemption = preemption_policy.PreemptionPolicy(run.book, group.places, grace)
        self.divergence = divergence.DivergenceWatch(run.config.divergence_config, self.num_reporting)
        self.questions = question_resolver.QuestionResolver(
            run.manager, run.book, self.num_reporting, obstacle, self.preemption
        )

    def begin(self, rank: int) -> worker_group.Ref | None:
        """Call the training function in a rank, and return the call; None if the rank's role does not run it."""
        group, scaling = self.group, self.run.scaling
        role = group.roles[rank] if group.roles else None
        if role is not None and not role.runs:
            return None
        shared = self.run.describe_attempt(
            self.num_reporting, attempt=self.number, token="" if ALWAYS_SENDS else self.token, mark=self.token
        )
        bundle = scaling.bundle if role is None else role.bundle
        info = rank_info.build(
            shared,
            rank,
            group.places[rank],
            use_gpu=scaling.use_gpu and bundle.get("GPU", 0.0) > 0,
            bystander="" if role is None or role.reports else role.name,
        )
        name = getattr(self.run.function, "__name__", "the training function")
        ref: worker_group.Ref = group.actors[rank].run.options(name=name).remote(self._work, info)
        return ref

    def replace(self, rank: int) -> worker_group.Ref | None:
        """Start a new process for a dead rank, and call the training function there."""
        self.group.replace(rank)
        self.run.backend_config.on_replace(self.group, rank)
        return self.begin(rank)

    def acknowledge_all(self, index: int, committed: object) -> None:
        """Inform all ranks that a checkpoint was committed with the report of this index."""
        for handle in self.group.actors:
            handle.acknowledge.remote(index, committed)

    def answer(self) -> None:
        """Send the ranks the answers that are known by now."""
        for rank, answer in self.questions.settle():
            self.group.actors[rank].answer.remote(answer)
