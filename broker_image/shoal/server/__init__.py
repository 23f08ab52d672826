"""The asyncio shell: listeners, connections, dispatch, one handler file an API, timers, metrics."""
