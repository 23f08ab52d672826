"""A real broker for the tests of your application: in a child process, or in a thread.

    with Broker() as broker:
        subprocess.run(["java", "-jar", "app.jar", broker.bootstrap])

`pytest_plugin` has fixtures. docs/testing.md is the guide. pytest imports this package at each
start, so at the top its modules import nothing but the standard library and each other.
"""

from shoal.testing.broker import Broker
from shoal.testing.local_folder import RunningFolder, shoal_up
from shoal.testing.server_process import BrokerFailed

__all__ = ["Broker", "BrokerFailed", "RunningFolder", "shoal_up"]
