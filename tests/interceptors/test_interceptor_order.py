"""The order in which interceptors are asked."""

from __future__ import annotations

from interceptors import Ceiling, CompactTrigger, Limits, Permissions, Prune, RepeatGuard, default_chain
from worker.interceptor import Interceptor


class Mine(Interceptor):
    pass


def test_limits_guards_the_users_prune_trigger_ceiling_permissions() -> None:
    parts = Limits(), RepeatGuard(), Mine(), Prune(), CompactTrigger(), Ceiling(), Permissions()
    limits, guard, mine, prune, trigger, ceiling, permissions = parts
    chain = default_chain(
        permissions=permissions,
        ceiling=ceiling,
        trigger=trigger,
        prune=prune,
        users=[mine],
        guards=[guard],
        limits=limits,
    )
    assert chain == parts


def test_a_ceiling_and_a_guard_always_stand() -> None:
    assert [type(i) for i in default_chain()] == [RepeatGuard, Ceiling]


def test_each_has_a_name_of_its_own() -> None:
    names = [
        i.name
        for i in default_chain(limits=Limits(), prune=Prune(), trigger=CompactTrigger(), permissions=Permissions())
    ]
    assert len(set(names)) == len(names) == 6
