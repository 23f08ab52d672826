"""`shoal server`: run a broker until a signal stops it. `serve` has what its flags do."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shoal.cli.commands import serve

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)

Listeners = Annotated[
    list[str] | None,
    typer.Option(
        "--listener",
        metavar="HOST:PORT",
        envvar="SHOAL_LISTENER",
        help="Address to listen on. Default: 127.0.0.1:9092. Port 0 uses a free port.",
    ),
]
Quorum = Annotated[
    str | None,
    typer.Option(
        metavar="ID@HOST:PORT,…",
        help="Voters of the metadata quorum, the same on all nodes (controller.quorum.voters)."
        " A voter's port is its controller port, for instance its client port + 1. The node listens"
        " on it at the host of its first --listener.",
    ),
]
BrokersPerHost = Annotated[
    int | None,
    typer.Option(
        "--brokers-per-host",
        metavar="N",
        help="Brokers to run on this host, one per core (shoal.brokers.per.host; docs/cluster.md)."
        " Without --quorum their controller listens on 127.0.0.1, at the port after the brokers'.",
    ),
]
ConsoleAddress = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="Address of the console, a web page that shows the queues, such as 127.0.0.1:9080."
        " It only reads. See `shoal console`.",
    ),
]
Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure",
        help="Let other hosts reach listeners without encryption"
        " (shoal.insecure.listeners.enable).",
    ),
]
AddScram = Annotated[
    list[str] | None,
    typer.Option(
        "--add-scram",
        metavar="MECHANISM=[name=…,password=…]|@FILE",
        help="A user of a new cluster, for instance 'SCRAM-SHA-512=[name=admin,password=secret]',"
        " also with iterations= and salt=, or saltedpassword= for password=. Other users of this"
        " host may see the flag for a moment. To avoid that, name a file with one user a line, or"
        " set SHOAL_ADD_SCRAM. Give all controllers the same users. A node of an existing cluster"
        " refuses it.",
    ),
]


@app.command()
def server(
    listener: Listeners = None,
    data_dir: Annotated[
        str | None,
        typer.Option(envvar="SHOAL_DATA_DIR", help="Directory of the logs. Default: ./shoal-data."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(envvar="SHOAL_CONFIG", help="A properties file with broker configs."),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A broker config."),
    ] = None,
    node_id: Annotated[
        int | None,
        typer.Option("--node-id", help="Id of this node in its cluster (node.id)."),
    ] = None,
    quorum: Quorum = None,
    cluster_id: Annotated[
        str | None,
        typer.Option("--cluster-id", help="Id of the cluster, the same on all nodes."),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Address of the HTTP endpoints /metrics, /healthz and /readyz.",
        ),
    ] = None,
    brokers_per_host: BrokersPerHost = None,
    console: ConsoleAddress = None,
    insecure: Insecure = False,
    add_scram: AddScram = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
    log_json: Annotated[bool, typer.Option("--log-json", help="Log as JSON.")] = False,
) -> None:
    """Run a broker.

    Every Kafka broker config can be set. A flag (--set log.retention.ms=9) has priority over the
    environment (SHOAL_LOG_RETENTION_MS=9), which has priority over the file of --config.
    """
    serve.serve(
        serve.ServerFlags(
            listener or (),
            data_dir,
            config,
            set_ or (),
            node_id,
            quorum,
            cluster_id,
            metrics,
            brokers_per_host,
            console,
            insecure,
            add_scram or (),
            log_level,
            log_json,
        )
    )
