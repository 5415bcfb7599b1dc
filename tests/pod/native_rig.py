"""A model whose provider compacts, for the tests of the policy `native`: without a wire, its encoder as strict as one."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import anyio

from pod import Manifest
from pod.log import entries as e
from tests.pod.pod_rig import Agent, Play, Rig, caller, capabilities, compacting, manifest
from worker.items import Item, OpaqueItem
from worker.memory import maker_of, memory_of, read_by_others
from worker.models.base import Compacted, ModelSettings, Price, Request, Usage
from worker.testing.plain_encoder import PlainEncoder, Role

PRICE = Price(1.0, 10.0, 0.1, 1.25, source="test")

Answer = Callable[[Request, int], "Compacted | Exception | None"]
"""What a provider makes of a request to compact and of its number (from 1); None: it never answers."""


class MemoryEncoder(PlainEncoder):
    """Writes a memory as it is for its own model, and as a summary for any other."""

    def __init__(self, name: str) -> None:
        self._name = name
        provider, _, model = name.partition(":")
        super().__init__(provider, model)

    def _seen(self, item: Item) -> Item:
        return item if isinstance(item, OpaqueItem) and maker_of(item) == self._name else read_by_others(item)

    def role(self, item: Item) -> Role | None:
        return super().role(self._seen(item))

    def joins(self, open_items: Sequence[Item], item: Item) -> bool:
        return super().joins([self._seen(i) for i in open_items], self._seen(item))

    def encode(self, items: Sequence[Item]) -> bytes:
        return super().encode([self._seen(i) for i in items])


def compacted(
    model: str, number: int, *, readable: str = "", tokens: int = 300, usage: Usage | None = None
) -> Compacted:
    """A provider's answer."""
    provider, _, label = model.partition(":")
    payload = json.dumps({"type": "compaction", "id": f"cmp_{number}", "encrypted_content": f"sealed {number} " * 20})
    item = OpaqueItem(provider=provider, model=label, payload=payload, readable=readable, tokens=tokens)
    usage = usage or Usage(input_tokens=9_000, cached_tokens=8_000, output_tokens=300)
    return Compacted(item, usage, "responses.compact", f"resp_{number}")


class NativeAgent(Agent):
    """An agent whose provider compacts: by `answer`, else with an item that only it can read. `asked` are the requests."""

    def __init__(
        self,
        play: Play,
        *,
        name: str = "sealed:one",
        answer: Answer | None = None,
        window: int = 200_000,
        enforce_window: bool = True,
        **caps: Any,
    ) -> None:
        known = capabilities(window, **{"native_compaction": ("responses.compact",), "price": PRICE, **caps})
        super().__init__(
            play, name=name, capabilities=known, encoder=MemoryEncoder(name), enforce_window=enforce_window
        )
        self.answer = answer
        self.settings = ModelSettings()
        self.asked: list[Request] = []

    async def compact(self, request: Request) -> Compacted:
        """As `worker.models.base.CompactsNatively`."""
        await anyio.lowlevel.checkpoint()
        calls = {i.call_id for i in request.items if i.type == "tool_call"}
        assert calls == {i.call_id for i in request.items if i.type == "tool_result"}, "a call is open"
        self.asked.append(request)
        number = len(self.asked)
        found = self.answer(request, number) if self.answer else compacted(self.name, number)
        if found is None:
            await anyio.sleep_forever()
        if isinstance(found, Exception):
            raise found
        assert found is not None
        return found


def native(request: int | None = 12_000, ladder: Sequence[str] | None = None, **sections: Any) -> Manifest:
    """A manifest with the policy `native`."""
    context: dict[str, Any] = {"policy": "native"} | ({} if ladder is None else {"ladder": ladder})
    return manifest(context=context, compaction=compacting(request), **sections)


def memories(rig: Rig, name: str = "p") -> list[OpaqueItem]:
    """Those that segments began with, oldest first."""
    return [found for start in rig.starts(name) if (found := memory_of(start.items)) is not None]


def rungs(rig: Rig, name: str = "p") -> list[tuple[str, str]]:
    """The rungs with what became of them."""
    return [(r.rung, r.state) for r in rig.of(e.CompactionRung, name)]


def create(model_id: str, settings: ModelSettings) -> NativeAgent:
    """The provider `sealed` of a manifest: `plain` neither compacts nor clears."""
    name, play = f"sealed:{model_id}", caller(6)
    if model_id == "plain":
        agent = NativeAgent(play, name=name, native_compaction=())
    else:
        agent = NativeAgent(play, name=name, tool_clearing=True, history_binding="thinking_prefix")
    agent.settings = settings
    return agent
