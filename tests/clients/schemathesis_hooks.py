"""Bodies of media types that schemathesis does not know, for schemathesis_run.py."""

import json

import schemathesis
from hypothesis import strategies
from service import PREFIX

# Names of records that exist, and of others.
NAMES = strategies.sampled_from([f"{PREFIX}/hello", f"{PREFIX}/many", f"{PREFIX}/new", "10.99999/none", "none", ""])
VALUES = strategies.lists(strategies.fixed_dictionaries({
    "index": strategies.integers(-1, 5), "type": strategies.sampled_from(["URL", "DESC", ""]), "data": strategies.text(),
}), max_size=3)
OPERATIONS = strategies.sampled_from(["create", "replace", "delete", "add", "remove", "modify", "none", None])
JSON = strategies.recursive(
    strategies.none() | strategies.booleans() | strategies.integers() | strategies.text(),
    lambda items: strategies.lists(items) | strategies.dictionaries(strategies.text(), items), max_leaves=5,
)
CHANGES = strategies.fixed_dictionaries(
    {"handle": NAMES},
    optional={"operation": OPERATIONS, "values": VALUES, "indexes": strategies.lists(strategies.integers(), max_size=3)},
)
LINES = strategies.lists(CHANGES.map(json.dumps) | NAMES.map(json.dumps) | JSON.map(json.dumps) | strategies.text(),
                         max_size=5).map("\n".join)


@strategies.composite
def messages(draw):
    """A message with its envelope: queries for the most part, and lengths that are right as a rule."""
    name = draw(NAMES).encode()
    body = len(name).to_bytes(4, "big") + name + bytes(8)
    body = draw(strategies.just(body) | strategies.binary(max_size=40))
    operation = draw(strategies.sampled_from([1, 2, 100, 101, 200, 300, 0, 4096]))
    flags = draw(strategies.sampled_from([0x0100_0000, 0, 0xffff_ffff]))
    header = b"".join(number.to_bytes(4, "big") for number in (operation, 0, flags, 0, 0, len(body)))
    message = header + body + bytes(4)
    length = draw(strategies.sampled_from([len(message)] * 3 + [0, 2**31, 2**32 - 1]))
    envelope = bytes([2, 11, 0, 0]) + bytes(4) + (1).to_bytes(4, "big") + bytes(4) + length.to_bytes(4, "big")
    return envelope + message


def register(media, strategy, encode):
    schemathesis.openapi.media_type(media, strategy.map(encode))

    @schemathesis.serializer(media)
    def serialize(_context, value):
        return value if isinstance(value, bytes) else str(value).encode()

    @schemathesis.deserializer(media)
    def deserialize(_context, response):
        return response.content.decode(errors="replace")


register("application/x-ndjson", LINES, lambda text: text.encode(errors="replace"))
register("application/x-hdl-message", messages(), lambda message: message)
