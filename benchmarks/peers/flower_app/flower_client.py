"""A client that trains nothing: it adds a number of its own to all parameters, and sends them back."""

from flwr.app import Context, Message
from flwr.client import Client, NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS


class Adding(NumPyClient):
    """Its update is known.

    Args:
        node: Flower's number of this SuperNode.
    """

    def __init__(self, node: int) -> None:
        self._own = own_number(node)

    def fit(self, parameters, config):
        """No two answers are the same: Flower does not carry again what it has carried."""
        return [values + self._own for values in parameters], 1, {}


def own_number(node: int) -> float:
    """What a client adds."""
    return node % 97 / 1000


def with_secagg_if_asked(message: Message, context: Context, call_next) -> Message:
    """SecAgg+ for the rounds that are SecAgg+'s."""
    if RECORD_KEY_CONFIGS in message.content.config_records:
        return secaggplus_mod(message, context, call_next)
    return call_next(message, context)


def client(context: Context) -> Client:
    """One for each message."""
    return Adding(context.node_id).to_client()


app = ClientApp(client_fn=client, mods=[with_secagg_if_asked])
