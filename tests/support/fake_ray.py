"""What sacmil uses of Ray, in this process and at once: a script says how each call ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any


class RayError(Exception):
    pass


class RayTaskError(RayError):
    pass


class ActorDiedError(RayError):
    pass


class ActorUnavailableError(RayError):
    pass


class OutOfMemoryError(RayError):
    pass


class FakeRay:
    """A cluster of nodes with one core each.

    Args:
        nodes: their names; the script may change them.
        run: called with an item and how often it was tried before; its value, or its error.
        start: called when an actor starts; an error fails the start.
    """

    exceptions = SimpleNamespace(
        RayError=RayError,
        RayTaskError=RayTaskError,
        ActorDiedError=ActorDiedError,
        ActorUnavailableError=ActorUnavailableError,
        OutOfMemoryError=OutOfMemoryError,
    )

    def __init__(
        self,
        nodes: list[str],
        run: Callable[[int, int], Any],
        start: Callable[[], None] = lambda: None,
    ) -> None:
        self.live_nodes, self._run, self._start = nodes, run, start
        self.actors: list[object] = []
        self.tries: Counter[int] = Counter()

    def nodes(self) -> list[dict[str, Any]]:
        return [
            {"NodeID": name, "Alive": True, "Resources": {"CPU": 1.0}} for name in self.live_nodes
        ]

    def remote(self, **options: Any) -> Callable[[type], Any]:
        return lambda of: SimpleNamespace(remote=lambda *arguments: self._make_actor())

    def _make_actor(self) -> Any:
        def locate() -> str:
            self._start()
            return self.live_nodes[0]

        def run(item: int) -> tuple[Any, None]:
            self.tries[item] += 1
            return self._run(item, self.tries[item]), None

        actor = SimpleNamespace(
            locate=SimpleNamespace(remote=lambda: Call(locate)),
            run=SimpleNamespace(remote=lambda item: Call(run, item)),
        )
        self.actors.append(actor)
        return actor

    def kill(self, actor: Any) -> None:
        self.actors = [other for other in self.actors if other is not actor]

    def wait(self, calls: list[Call], timeout: float) -> tuple[list[Call], list[Call]]:
        return calls[:1], calls[1:]

    def get(self, call: Call) -> Any:
        return call.function(*call.arguments)


class Call:
    """A call under way."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.function, self.arguments = function, arguments
