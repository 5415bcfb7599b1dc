"""Models for tests, without a key and without a network: scripted replies, functions as models, strict checks."""

from worker.testing.function_model import COUNTED, FunctionModel, make_reply
from worker.testing.plain_encoder import PlainEncoder, encode_items
from worker.testing.scripted import (
    Recorded,
    ScriptedModel,
    ScriptError,
    Step,
    call,
    calls,
    fail,
    hang,
    raw_call,
    reply,
    say,
    think,
)
from worker.testing.strict import InvalidItems, check_items, check_request

__all__ = [
    "COUNTED",
    "FunctionModel",
    "InvalidItems",
    "PlainEncoder",
    "Recorded",
    "ScriptError",
    "ScriptedModel",
    "Step",
    "call",
    "calls",
    "check_items",
    "check_request",
    "encode_items",
    "fail",
    "hang",
    "make_reply",
    "raw_call",
    "reply",
    "say",
    "think",
]
