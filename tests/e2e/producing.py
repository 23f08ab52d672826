"""A producer in the client's pod that goes on while brokers come and go."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from e2e.resources import Resources

#: Produces until a line comes in, and fifty records more; then tells how many were sent and
#: how many refused.
PRODUCE = """
import asyncio, os, sys
from shoal.client.client import Client
from shoal.client.errors import ClientError

async def main():
    stop = asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    sent = failed = after = 0
    async with Client(os.environ["SHOAL_BOOTSTRAP"]) as client:
        async with client.producer() as producer:
            while not stop.done() or after < 50:
                after += stop.done()
                try:
                    await (await producer.send("jobs", b"%d" % sent))
                    sent += 1
                    if sent == 1:
                        print("begun", flush=True)
                except ClientError as error:
                    failed += 1
                    print(error, file=sys.stderr)
                await asyncio.sleep(0.02)
    print(sent, failed)

asyncio.run(main())
"""


@contextmanager
def producing(queue: Resources) -> Iterator[list[int]]:
    """A producer in the client's pod; afterwards the list holds how many were sent and failed."""
    counts: list[int] = []
    environment = queue.cluster.environment()
    servers = f"SHOAL_BOOTSTRAP=main-bootstrap.{queue.namespace}.svc:9092"
    exec_ = ("kubectl", "exec", f"--namespace={queue.namespace}", "--stdin", "client", "--")
    with subprocess.Popen(
        [*exec_, "env", servers, "python3", "-c", PRODUCE],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
    ) as process:  # fmt: skip
        assert process.stdout and process.stdout.readline() == "begun\n"
        yield counts
        counts.extend(map(int, process.communicate("\n", timeout=60)[0].split()))
