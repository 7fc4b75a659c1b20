"""A ServerApp that times Flower's own rounds: federated averaging, plain and with SecAgg+, in turn."""

import json
import time

import numpy as np
from flower_client import own_number
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays
from flwr.compat.common import recorddict_compat as compat
from flwr.server import LegacyContext, ServerConfig, SimpleClientManager
from flwr.server.compat.app_utils import start_update_client_manager_thread
from flwr.server.strategy import FedAvg
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD, Key
from flwr.server.workflow.default_workflows import default_fit_workflow
from flwr.serverapp import Grid, ServerApp

SITES = 3
ALLOWED = 1e-4  # SecAgg+ counts in steps of 16 / 2^22

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Writes a line for each pair of rounds; the first pair warms up."""
    given, manager = context.run_config, SimpleClientManager()
    strategy = FedAvg(fraction_evaluate=0.0, min_fit_clients=SITES, min_available_clients=SITES)
    _, ended, _ = start_update_client_manager_thread(grid, manager)
    manager.wait_for(SITES)
    context = LegacyContext(context, ServerConfig(), strategy, manager)
    rounds = {
        "FedAvg": default_fit_workflow,
        "SecAgg+": SecAggPlusWorkflow(num_shares=SITES, reconstruction_threshold=SITES - 1, max_weight=1.0),
    }
    weights = np.random.default_rng(0).normal(size=max(1, round(given["megabytes"] * 250_000))).astype(np.float32)
    for number in range(2 * (1 + given["rounds"])):
        name = list(rounds)[number % 2]
        context.state.config_records[MAIN_CONFIGS_RECORD] = ConfigRecord({Key.CURRENT_ROUND: number + 1, Key.START_TIME: 0.0})
        context.state.array_records[MAIN_PARAMS_RECORD] = _record(weights)
        started = time.perf_counter()
        rounds[name](grid, context)
        seconds = time.perf_counter() - started
        expected = np.mean([own_number(int(node)) for node in manager.all()])
        found = _weights(context.state.array_records[MAIN_PARAMS_RECORD])
        error = float(np.abs(found - weights - expected).max())
        if expected == 0 or error > ALLOWED:
            raise RuntimeError(f"{name}: the average is wrong by {error}")
        with open(given["file"], "a", encoding="utf-8") as file:
            file.write(json.dumps({"round": name, "seconds": seconds}) + "\n")
        weights = found
    ended.set()


def _record(weights: np.ndarray) -> ArrayRecord:
    return compat.parameters_to_arrayrecord(ndarrays_to_parameters([weights]), keep_input=True)


def _weights(record: ArrayRecord) -> np.ndarray:
    return parameters_to_ndarrays(compat.arrayrecord_to_parameters(record, keep_input=True))[0]
