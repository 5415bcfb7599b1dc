"""The order of the built-in interceptors."""

from __future__ import annotations

from collections.abc import Sequence

from interceptors.ceiling import Ceiling
from interceptors.limits import Limits
from interceptors.permissions import Permissions
from interceptors.prune import Prune
from interceptors.repeat import RepeatGuard
from interceptors.triggers import CompactTrigger
from interceptors.window import WindowWarning
from worker.interceptor import Interceptor


def default_chain(
    *,
    limits: Limits | None = None,
    guards: Sequence[Interceptor] = (),
    users: Sequence[Interceptor] = (),
    prune: Prune | None = None,
    trigger: CompactTrigger | None = None,
    window: WindowWarning | None = None,
    ceiling: Ceiling | None = None,
    hooks: Interceptor | None = None,
    permissions: Permissions | None = None,
) -> tuple[Interceptor, ...]:
    """Limits, guards (a `RepeatGuard` where none are given), the user's, prune, compact trigger, warning of the window's
    end, ceiling, hooks around calls, permissions.

    A limit ends a run before anything is spent on it; prune and trigger look at what the user's interceptors added; the
    ceiling looks at the view that is sent. Permissions are asked last, so that no other interceptor's word comes after
    theirs. What is None is left out, but for the ceiling, which always stands.
    """
    chain = (
        limits,
        *(guards or (RepeatGuard(),)),
        *users,
        prune,
        trigger,
        window,
        ceiling or Ceiling(),
        hooks,
        permissions,
    )
    return tuple(interceptor for interceptor in chain if interceptor is not None)
