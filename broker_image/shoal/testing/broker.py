"""`Broker`: a broker of one test, or of a session of tests."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from shoal.testing.bound_server import REMOVED
from shoal.testing.server_process import BoundProcess

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.testing.server_thread import ServerThread

#: Configs of a test's broker. Kafka waits three seconds for more members of a new group, and makes
#: fifty partitions of each internal topic for a cluster that grows.
CONFIGS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.streams.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
}


class Broker:
    """A real broker on a free port of 127.0.0.1, in a child process or in a thread.

    with Broker({"num.partitions": 3}) as broker:
        producer = KafkaProducer(bootstrap_servers=broker.bootstrap)

    Its data is in a temporary directory, which `stop` removes, unless you name one. It ends with
    this process, also if that is killed.
    """

    def __init__(
        self,
        configs: Mapping[str, str | int | bool] | None = None,
        *,
        data_dir: Path | str | None = None,
        in_thread: bool = False,
    ) -> None:
        """`configs` are broker configs by their names in Kafka; see `CONFIGS` for the defaults."""
        self._is_temporary = data_dir is None
        temporary = Path(tempfile.gettempdir(), f"shoal-{uuid4().hex[:12]}")
        self.data_dir = temporary if data_dir is None else Path(data_dir)
        every = CONFIGS | {name: _format(value) for name, value in (configs or {}).items()}
        self._server: BoundProcess | ServerThread
        if in_thread:
            # It imports asyncio, which pytest does without.
            from shoal.testing.server_thread import ServerThread

            self._server = ServerThread(self.data_dir, configs=every)
        else:
            removed = str(self.data_dir) if self._is_temporary else ""
            self._server = BoundProcess(
                self.data_dir, configs=every, metrics="", environment={REMOVED: removed}
            )

    @property
    def bootstrap(self) -> str:
        """The address for clients, such as `127.0.0.1:40317`. It stays over restarts."""
        return self._server.bootstrap

    @property
    def is_running(self) -> bool:
        """Whether it has neither ended nor been stopped."""
        return self._server.is_running

    @property
    def log(self) -> list[str]:
        """The lines that it has printed. Those of a broker in a thread go to standard error."""
        return self._server.log

    def start(self) -> Broker:
        """Start it; return it when it is ready. Raises `BrokerFailed`."""
        try:
            self._server.launch()
            self._server.wait()
        except BaseException:
            self._remove()
            raise
        return self

    def stop(self) -> None:
        """Stop it in order, and remove its temporary directory. A second call does nothing."""
        try:
            self._server.stop()
        finally:
            self._remove()

    def restart(self) -> None:
        """Stop it in order, if it runs, and start it again with its data and on its port."""
        self._server.stop()
        self.start()

    def kill(self) -> None:
        """Kill it as a crash would, to see what your application does; `restart` starts it again.
        Raises `TypeError` for a broker in a thread."""
        self._server.kill()

    def _remove(self) -> None:
        if self._is_temporary:
            shutil.rmtree(self.data_dir, ignore_errors=True)

    def __enter__(self) -> Broker:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


def _format(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
