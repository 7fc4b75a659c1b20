"""Tracker for MLflow: a tracking server, or files next to the run's folder."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from dpfed.callbacks.callback import RunInfo
from dpfed.callbacks.tracker import Picture, Rows, Tracker, sendable
from dpfed.errors import UserError

_TAG = "dpfed.run"  # tag by which a resumed run finds its MLflow run
_ALWAYS = "training/learning_rate"  # metric that every row of a step has
_RETRIES = "MLFLOW_HTTP_REQUEST_MAX_RETRIES"
_AT_ONCE = 100  # most parameters in one request
_LONGEST = 500  # most characters of a parameter's value


class MLflow(Tracker):
    """A tracker that sends figures to MLflow.

    A resumed run continues its MLflow run. The tracker sends neither the user's name nor the program's. The timestamps of
    figures are derived from step numbers.

    Args:
        uri: URI of the tracking server or store, or a folder; ``None``: the value of MLFLOW_TRACKING_URI, or the folder
            ``mlruns`` next to the run's folder.
        experiment: Name of the experiment; ``None``: the value of MLFLOW_EXPERIMENT_NAME, or ``dpfed``.
        run_id: Id of the MLflow run to continue; ``None``: a new run makes one, and a resumed run finds its own.
        every: Number of steps between two rows of figures; ``None``: the tracker gets a row whenever metrics.jsonl gets a line.

    Raises:
        UserError: If the package mlflow is missing or cannot reach the server or database, or `every` is less than 1.
    """

    title = "MLflow"
    package = "mlflow-skinny"
    module = "mlflow"

    def __init__(
        self, uri: str | Path | None = None, experiment: str | None = None, run_id: str | None = None, every: int | None = None
    ) -> None:
        super().__init__(every)
        # Read here: on a cluster, another process with another environment sends the figures.
        self._uri = str(uri) if uri else os.environ.get("MLFLOW_TRACKING_URI")
        self._experiment = experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "dpfed"
        self._given, self._id, self._seen = run_id, "", -1
        self._client: Any = None
        if self._uri and not _is_folder(self._uri):
            with self._accepting(), _asked_once():
                self._connect(self._uri).get_experiment_by_name(self._experiment)

    def _import(self) -> Any:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # MLflow would report the functions that are called
        return super()._import()

    def _connect(self, uri: str) -> Any:
        return self._import().MlflowClient(tracking_uri=uri)

    def _open(self, run: RunInfo) -> None:
        if (uri := self._uri) is None:
            if run.folder is None:
                raise UserError("this training has no folder: give MLflow a store, as in MLflow('mlruns'). [mlflow-folder]")
            uri = (run.folder.absolute().parent / "mlruns").as_uri()
        if _is_folder(uri):
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # the only store that needs no database
        client = self._client = self._connect(uri)
        experiment = client.get_experiment_by_name(self._experiment)
        where = experiment.experiment_id if experiment else client.create_experiment(self._experiment)
        self._id, self._seen = self._given or self._own(where, run.identity), -1
        if self._id:
            client.update_run(self._id, status="RUNNING")
            self._seen = max((point.step for point in client.get_metric_history(self._id, _ALWAYS)), default=-1)
            return
        # Unlike mlflow.start_run, this adds neither the user's name nor that of the program.
        self._id = client.create_run(where, run_name=run.name, tags={_TAG: run.identity}).info.run_id
        config = list(sendable(run.config).items())
        for first in range(0, len(config), _AT_ONCE):
            client.log_batch(self._id, params=self._parameters(config[first : first + _AT_ONCE]))

    def _own(self, experiment: str, identity: str) -> str:
        """Returns the id of the MLflow run that belongs to a dpfed run; "" if there is none."""
        if not identity:
            return ""
        runs = self._client.search_runs([experiment], filter_string=f"tags.`{_TAG}` = '{identity}'", max_results=1)
        return str(runs[0].info.run_id) if runs else ""

    def _parameters(self, config: Iterable[tuple[str, Any]]) -> list[Any]:
        param = self._import().entities.Param
        return [param(_named(key), str(value)[:_LONGEST]) for key, value in config]

    def _write(self, rows: Rows) -> None:
        metric = self._import().entities.Metric
        points = [
            metric(_named(name), value, step + 1, step)  # MLflow would replace a timestamp of 0 by the clock's time
            for step, figures in rows.items()
            if step > self._seen
            for name, value in figures.items()
        ]
        if points:
            self._client.log_batch(self._id, metrics=points)

    def _add(self, card: Path | None, shown: list[Picture]) -> None:
        if card is not None:
            self._client.log_artifact(self._id, str(card))
        for picture in shown:
            self._client.log_artifact(self._id, str(picture.path), "gallery")

    def _close(self, finished: bool) -> None:
        if self._id:
            self._client.set_terminated(self._id, "FINISHED" if finished else "KILLED")
            self._id = ""


def _is_folder(uri: str) -> bool:
    """Returns whether a URI names a folder of files. The tracker makes it when a run begins; a server must answer earlier."""
    return uri.startswith(("file:", "/", ".")) or (":" not in uri and not uri.startswith("databricks"))


@contextlib.contextmanager
def _asked_once() -> Iterator[None]:
    """Limits MLflow to one retry before a run, so that an unreachable server fails fast; a number that the user set stays.

    While the run continues, MLflow may retry for minutes.
    """
    given = os.environ.get(_RETRIES)
    os.environ[_RETRIES] = given or "1"
    try:
        yield
    finally:
        if given is None:
            del os.environ[_RETRIES]


def _named(name: str) -> str:
    """Returns a name that MLflow accepts: ``knn_accuracy[shape]`` becomes ``knn_accuracy.shape``, ``R@10`` ``R_at_10``."""
    return re.sub(r"[^\w\-. :/]", "_", name.replace("[", ".").replace("]", "").replace("@", "_at_"))
