"""`--otel`: the argument, and what is done around a command that has it."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argparse import Namespace, _ActionsContainer  # pyright: ignore[reportPrivateUsage]

LASTING = frozenset({"serve", "node"})
"""Commands that run on and on: what is amiss is told at once, not at their end."""


def add_otel(parser: _ActionsContainer) -> None:
    """The argument."""
    parser.add_argument(
        "--otel", action="store_true",
        help="send traces and metrics by OpenTelemetry, where the OTEL_* variables say (default: http://localhost:4318)",
    )  # fmt: skip


@contextmanager
def traced(command: str, values: Namespace) -> Generator[None]:
    """Around a command: nothing, unless `--otel` asks for it. Raises `UsageProblem`."""
    if not getattr(values, "otel", False):
        yield
        return
    from pod.cli.failing import note
    from pod.errors import UsageProblem
    from pod.otel import EXTRA

    try:
        from pod.otel.exporting import exported
    except ModuleNotFoundError as error:
        # The API alone may have come with another package.
        if not (error.name or "").startswith("opentelemetry"):
            raise
        raise UsageProblem(EXTRA) from None
    with exported(lambda text: note(f"pod: warning: {text}"), at_once=command in LASTING):
        yield
