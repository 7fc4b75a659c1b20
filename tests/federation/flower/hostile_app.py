"""A site's app whose replies are bombs to Flower: one in every other step, until there are no more. Its words are the app's."""

import sys

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict

import dpfed.federation.flower.resident
from dpfed.cli import main
from dpfed.federation.flower.channel import packet_in
from dpfed.protocol.messages import alleged


def records(message, **named):
    return Message(RecordDict(named), reply_to=message)


def array(kind, shape, content):
    return ArrayRecord({"vector": Array("uint8", shape, kind, content)})


DEEDS = [
    lambda to: records(
        to, packet=ConfigRecord({"header": b"{}", "signature": b""}), vector=array("dpfed.raw", (400 << 20,), bytes(400 << 20))
    ),
    lambda to: records(to, **{f"r{number}": ConfigRecord({"x": [1] * 1_000}) for number in range(3_000)}),
    lambda to: records(to, packet=ConfigRecord({"header": "../../etc/passwd", "signature": [float("nan")]})),
    lambda to: Message(Error(code=77, reason="\x1b[31mred\x1b[0m\r\n" * 1_000), reply_to=to),
    lambda to: records(to, packet=ConfigRecord({"header": b"[" * 3_000_000, "signature": b"x" * 3_000_000})),
    lambda to: records(to, vector=array("numpy.ndarray", (10**9,), b"\x93NUMPY")),
]
honest = dpfed.federation.flower.resident.app


def answer(message, context):
    asked = alleged(packet_in(message.content))
    if DEEDS and asked.get("kind") != "hello" and asked.get("step", 0) % 2:
        print(f"{len(DEEDS)} deeds left", flush=True)
        return DEEDS.pop(0)(message)
    return honest(message, context)


if __name__ == "__main__":
    dpfed.federation.flower.resident.app = answer
    sys.argv[1:1] = ["site", "app"]
    main()
