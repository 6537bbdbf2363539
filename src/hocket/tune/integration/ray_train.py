"""Reports of a trainer that runs in a trial's function. The module's name is Ray's."""

from __future__ import annotations

from hocket.tune.worker import trainer_program

TuneReportCallback = trainer_program.TuneReportCallback
