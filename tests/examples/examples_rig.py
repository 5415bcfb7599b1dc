"""Examples as modules, and a server for those that are one."""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import anyio
import sniffio
from hypercorn.config import Config

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"


def example(name: str) -> ModuleType:
    """The module of an example, which has no package."""
    spec = importlib.util.spec_from_file_location(f"examples_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # pydantic looks up names there
    spec.loader.exec_module(module)
    return module


@asynccontextmanager
async def serving(app: Any) -> AsyncGenerator[str]:
    """An ASGI app on a socket of this machine, with its lifespan, on the backend of the test; its address."""
    if sniffio.current_async_library() == "trio":
        from hypercorn.trio import serve
    else:
        from hypercorn.asyncio import serve
    config, ended = Config(), anyio.Event()
    config.accesslog = config.errorlog = None
    config.graceful_timeout = 1.0
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        config.bind = [f"fd://{os.dup(listener.fileno())}"]
        async with anyio.create_task_group() as group:
            group.start_soon(partial(serve, app, config, shutdown_trigger=ended.wait, mode="asgi"))
            try:
                yield f"http://127.0.0.1:{listener.getsockname()[1]}"
            finally:
                ended.set()
