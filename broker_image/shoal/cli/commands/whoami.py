"""`shoal whoami`: how the cluster has authenticated this client, and what it may do."""

from __future__ import annotations

from shoal.cli import output
from shoal.cli.output import Format, FormatOption
from shoal.cli.resources import format_word
from shoal.cli.session import command, make_app
from shoal.client.admin.security_admin import list_cluster_operations
from shoal.client.client import Client
from shoal.client.security.security import Security

app = make_app("Show how the cluster has authenticated you.")


@command(app)
async def whoami(client: Client, format: FormatOption = Format.TABLE) -> None:
    """Show your principal as the broker reports it, and your operations on the cluster.

    Brokers of other versions may not report the principal. Operations are shown to users who may
    describe the cluster; without authorization they are all.
    """
    identity = await client.admin.tokens.identity()
    operations = await list_cluster_operations(client.cluster)
    link = await client.cluster.get_any_connection()
    row = {
        "principal": identity.principal if identity else None,
        "authenticated_by": _describe_login(client.cluster.settings.security),
        "broker": str(link),
        "cluster_operations": [format_word(operation) for operation in operations or ()],
    }
    output.print_rows(format, [row])


def _describe_login(security: Security) -> str:
    """Return the protocol, and the mechanism of SASL."""
    if not security.sasl:
        return security.protocol
    token = " and a delegation token" if security.is_token else ""
    return f"{security.protocol} with {security.mechanism}{token}"
