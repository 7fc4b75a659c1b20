"""The Flower ServerApp: the coordinator of a federation, whose messages Flower carries."""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from dpfed.console import logs
from dpfed.console.terminal import console, show_run, watching
from dpfed.errors import UserError
from dpfed.federation.coordinator.running import coordinate
from dpfed.federation.flower.channel import FlowerChannel

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Trains with the sites of a federation; resumes the run if its directory exists.

    The run config has two keys, both with absolute paths on the machine of the SuperLink. ``federation`` is the folder of the
    terms (`CoordinatorFolder`), which is ``federation`` in the folder that `dpfed federation provision` makes. ``run`` is the
    run's directory.

    Raises:
        UserError: If a path is not absolute, or for another reason, see `coordinate`.
    """
    try:
        given = {name: str(context.run_config.get(name, "")) for name in ("federation", "run")}
        for name, value in given.items():
            if not Path(value).is_absolute():
                raise UserError(f"run-config {name} = {value!r}: give an absolute path on the SuperLink's host. [flower-path]")
        logs.set_up()  # in the format of DPFED_LOG_FORMAT
        with watching() as progress:
            run = coordinate(Path(given["federation"]), Path(given["run"]), FlowerChannel(grid), progress)
        show_run(run)
    except UserError as error:
        if logs.active():
            logs.write("error", "error", text=str(error))
        else:
            console.print(f"error: {error}", markup=False, highlight=False, soft_wrap=True)
        raise  # Flower marks the run as failed at once; it would notice an ended process only a minute later
