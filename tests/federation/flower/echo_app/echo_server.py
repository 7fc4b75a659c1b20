"""A ServerApp that a test drives: it calls the channel as told through a local connection, until that closes."""

from multiprocessing.connection import Client

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from dpfed.federation.flower.channel import FlowerChannel

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    channel = FlowerChannel(grid)
    with Client(str(context.run_config["socket"])) as test:
        while (call := test.recv()) is not None:
            name, arguments = call
            if name == "sites":
                test.send(channel.sites())
            else:
                for answer in channel.exchange(*arguments):
                    test.send(answer)
                test.send(None)
