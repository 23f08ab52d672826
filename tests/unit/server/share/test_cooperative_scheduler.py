"""Calls that are spread over turns of the event loop."""

from __future__ import annotations

import asyncio
from functools import partial

from shoal.server.share.cooperative_scheduler import CooperativeScheduler


def test_a_turn_has_at_most_the_given_number_of_calls_in_their_order() -> None:
    async def main() -> None:
        turn, called = 0, list[tuple[int, int]]()

        def call(number: int) -> None:
            called.append((turn, number))

        scheduler = CooperativeScheduler(asyncio.get_running_loop(), calls_max=50)
        for number in range(120):
            scheduler.add(partial(call, number))
        while len(called) < 120:
            turn += 1
            await asyncio.sleep(0)
        assert [number for _, number in called] == list(range(120))
        most = max(sum(at == of for at, _ in called) for of in range(turn + 1))
        assert most == 50

    asyncio.run(main())
