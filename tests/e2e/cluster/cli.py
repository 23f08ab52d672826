"""The test cluster as a command: `python tests/e2e/cluster/cli.py COMMAND`.

  up                 start the cluster; nothing happens if it is up
  down               remove it
  provide [IMAGE...] build and install what a cluster needs, these images beside it; start nothing
  status             print the state; exits with 1 if the cluster is not up
  env                print shell exports: KUBECONFIG, and PATH with kubectl and helm
  build [IMAGE...]   build the project's images and print their archives; spark-operator by name
  load [FILE|IMAGE...]  load archives, or the project's images by name; all without a name
  spark-operator NAMESPACE...  install Kubeflow's Spark operator for these namespaces, or for all
  stop-kubelet, start-kubelet  end the node's kubelet, and start it again

SHOAL_CLUSTER=kind|local selects the kind of cluster, SHOAL_CLUSTER_INDEX=0..15 its addresses.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

# When this file is run by its path, its package is not on the import path yet.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from e2e.cluster import images, provision, spark_operator
from e2e.cluster.backend import Cluster, choose
from e2e.cluster.layout import ClusterError, layout_from_environment


def status(cluster: Cluster) -> int:
    name = f"{cluster.layout.name} ({cluster.kind})"
    if not cluster.is_up():
        print(f"{name} is not up")
        return 1
    print(f"{name} is up, KUBECONFIG={cluster.kubeconfig}")
    print(cluster.kubectl("get", "nodes,pods", "--all-namespaces", "--output=wide").stdout, end="")
    return 0


def env(cluster: Cluster) -> int:
    for name, value in cluster.environment().items():
        print(f"export {name}={shlex.quote(value)}")
    return 0


def load(cluster: Cluster, names: list[str]) -> int:
    for name in names or list(images.IMAGES):
        is_file = name.endswith(".tar") or "/" in name
        if is_file and not Path(name).is_file():
            raise ClusterError(f"There is no image archive {name}.")
        cluster.load(Path(name) if is_file else images.archive(name))
    return 0


def build(names: list[str]) -> int:
    for name in names or list(images.IMAGES):
        print(*provision.build(name), flush=True)
    return 0


NAMED = {"provide": provision.provide, "spark-operator": spark_operator.install}


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="cli.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    plain = ("up", "down", "status", "env", "stop-kubelet", "start-kubelet")
    commands = (*plain, "provide", "build", "load", "spark-operator")
    parser.add_argument("command", choices=commands)
    parser.add_argument("names", nargs="*", help="images, archives or namespaces")
    arguments = parser.parse_args(argv)
    cluster = choose(layout_from_environment())
    if arguments.command == "build":
        return build(arguments.names)
    if arguments.command == "load":
        return load(cluster, arguments.names)
    if named := NAMED.get(arguments.command):
        named(cluster, arguments.names)
        return 0
    if arguments.names:
        parser.error(f"{arguments.command} takes no names")
    actions = {"status": status, "env": env}
    if action := actions.get(arguments.command):
        return action(cluster)
    getattr(cluster, arguments.command.replace("-", "_"))()
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except ClusterError as error:
        sys.exit(f"{error}")
