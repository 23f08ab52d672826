"""The console: a web page that shows the queues of a cluster, and why one does not move.

`sampler` reads the cluster at an interval and keeps an hour of history. `pages` answers requests
from the last sample, and `live` sends each later one to open pages as server-sent events. What a
page alone needs (configs, records, dead letters) is read when the page is opened. The console only
reads. It works on Apache Kafka too, without the numbers that only Shoal's brokers report.

It needs aiohttp and Jinja2, the optional dependencies `console`. `shoal.cli.commands.console`
starts it.
"""
