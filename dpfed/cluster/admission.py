"""Whether a Ray cluster takes this machine's token: Ray tries a wrong one again and again, and does not say why it fails."""

from __future__ import annotations

from dpfed.cluster.reach import cluster_address, parsed
from dpfed.errors import UserError

NOT_TAKEN = (
    "does not take this machine's token: set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH to the token of "
    "that cluster."
)
_ANSWER = 2.0  # seconds; a head that takes longer is starting, and Ray asks it again
_QUESTION = "/ray.rpc.NodeInfoGcsService/GetClusterId"  # what every member asks first; only whether it is let in matters here


def require_admission() -> None:
    """Refuses at once what Ray would try for minutes: a cluster that wants another token.

    Raises:
        UserError: if the cluster says that the token is missing or wrong.
    """
    address, source = cluster_address()
    if not address or "://" in address:  # Ray's client says it itself
        return
    try:
        import grpc
        from ray._private.authentication.grpc_authentication_client_interceptor import _get_authentication_metadata_tuple
    except ImportError:  # another version of Ray: it takes longer, and ends the same way
        return
    host, port = parsed(address)
    with grpc.insecure_channel(f"{f'[{host}]' if ':' in host else host}:{port}") as channel:
        try:
            channel.unary_unary(_QUESTION)(b"", timeout=_ANSWER, metadata=_get_authentication_metadata_tuple())
        except grpc.RpcError as error:
            if error.code() != grpc.StatusCode.UNAUTHENTICATED:
                return
            raise UserError(f"the Ray cluster at {address!r} ({source}) {NOT_TAKEN}") from None
