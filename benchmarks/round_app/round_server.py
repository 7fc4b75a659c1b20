"""A ServerApp that carries out a federation's run and times it: `benchmarks.federation` starts it."""

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from benchmarks.rounds import carry_out_timed
from dpfed.federation.flower.channel import FlowerChannel

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Does what the task's file says."""
    carry_out_timed(Path(str(context.run_config["task"])), FlowerChannel(grid))
