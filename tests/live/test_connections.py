"""Whoever connects to the page and is silent, or says one letter now and then, keeps nobody out."""

import http.client
import socket
import threading
import time

import pytest

uvicorn = pytest.importorskip("uvicorn")

from dpfed.live import serving  # noqa: E402

FEW = 8


class Server(uvicorn.Server):
    def install_signal_handlers(self):
        pass


@pytest.fixture
def port(monkeypatch):
    """Of a page that answers at once, and of one that goes on for ever."""
    monkeypatch.setattr(serving, "_CONNECTIONS", FEW)
    monkeypatch.setattr(serving, "_ENDING", 2)

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
        await send({"type": "http.response.body", "body": b"here", "more_body": scope["path"] == "/events"})
        while scope["path"] == "/events" and (await receive())["type"] != "http.disconnect":
            pass

    bound = serving.Listener(socket.AF_INET)
    bound.bind(("127.0.0.1", 0))
    bound.listen()
    options = {"http": "h11", "loop": "asyncio", "lifespan": "off", "log_level": "critical", "ws": "none"}
    server = Server(uvicorn.Config(bound.answering(app), proxy_headers=False, timeout_graceful_shutdown=1, **options))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    yield bound.getsockname()[1]
    server.should_exit = True
    thread.join(10)


def connect(port, said=b""):
    connection = socket.create_connection(("127.0.0.1", port), 5)
    connection.sendall(said)
    return connection


def is_open(connection):
    connection.setblocking(False)
    try:
        return bool(connection.recv(100))
    except BlockingIOError:
        return True
    except OSError:
        return False


def get(port):
    page = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    page.request("GET", "/")
    return page.getresponse().read()


@pytest.mark.parametrize("said", [b"", b"G", b"GET / HTTP/1.1\r\nX: "])
def test_silent_connections_keep_nobody_out(port, said):
    silent = [connect(port, said) for _ in range(5 * FEW)]
    assert get(port) == b"here"
    deadline = time.monotonic() + 5
    while sum(map(is_open, silent)) >= FEW and time.monotonic() < deadline:
        time.sleep(0.05)
    assert sum(map(is_open, silent)) == FEW - 1 and all(map(is_open, silent[-FEW + 1 :]))  # the oldest go


def test_a_page_that_is_open_stays_open(port):
    reader = connect(port, b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert reader.recv(12) == b"HTTP/1.1 200"
    silent = [connect(port) for _ in range(5 * FEW)]
    assert get(port) == b"here" and is_open(reader) and not is_open(silent[0])
