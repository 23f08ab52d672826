"""What the local cluster needs and changes on the machine, and how that is restored.

A cluster changes four things on the machine outside its own namespaces. Debian packages stay. A
bridge, and a port and a route for each node, are removed. So is a directory for each node in the
cgroup tree. The kernel settings that a kubelet writes are saved before and restored after.
"""

from __future__ import annotations

import errno
import ipaddress
import json
import os
import shutil
from pathlib import Path

from .commands import lock, run, wait_for
from .layout import CACHE, NODES_MAX, ClusterError, Layout

#: Debian package -> a file that exists once it is installed.
PACKAGES = {
    "containerd": "/usr/bin/containerd",
    "runc": "/usr/sbin/runc",
    "containernetworking-plugins": "/usr/lib/cni/bridge",
    "iptables": "/usr/sbin/iptables",
    "nftables": "/usr/sbin/nft",
    "iproute2": "/usr/sbin/ip",
    "mmdebstrap": "/usr/bin/mmdebstrap",
    "buildah": "/usr/bin/buildah",
}
#: A kubelet writes these for the whole machine (k8s.io/component-helpers node/util/sysctl).
SYSCTLS = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)
CGROUPS = Path("/sys/fs/cgroup")
WEIGHT = 8


def require_root() -> None:
    """Raise unless this process may make namespaces."""
    if os.geteuid() != 0:
        raise ClusterError(
            "A local cluster needs root, for namespaces and cgroups: run the command with sudo, "
            "or start a Docker engine and it will use kind."
        )
    if run("unshare", "--net", "--mount", "--pid", "--fork", "true", check=False).returncode:
        raise ClusterError(
            "This machine does not let root make namespaces (CAP_SYS_ADMIN is missing): use a "
            "virtual machine or a privileged container, or start a Docker engine and use kind."
        )


def install_packages() -> None:
    """Install the missing Debian packages; they stay when the cluster is removed."""
    with lock(CACHE / "packages.lock"):
        if missing := [name for name, path in PACKAGES.items() if not Path(path).exists()]:
            _install(missing)


def _install(missing: list[str]) -> None:
    if not shutil.which("apt-get"):
        raise ClusterError(
            f"Install {', '.join(missing)} by this system's package tool: only Debian's is known."
        )
    # The systemd units are not started: the cluster runs its own containerd.
    quiet = {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    install = ("apt-get", "install", "--yes", "--no-install-recommends", *missing)
    if run(*install, env=quiet, check=False).returncode:
        run("apt-get", "update")
        run(*install, env=quiet)


def require_free_addresses(layout: Layout) -> None:
    """Raise if the machine has a route that overlaps one of the cluster's networks."""
    ours = (layout.node_network, layout.pod_network, layout.service_network)
    for route in json.loads(run("ip", "-json", "route", "show", "table", "all").stdout):
        if route["dst"] == "default" or ":" in route["dst"]:
            continue
        network = ipaddress.ip_network(route["dst"], strict=False)
        for wanted in ours:
            if network.overlaps(wanted):
                device = route.get("dev", "a rule")
                raise ClusterError(
                    f"{wanted} is in use here: {network} is routed by {device}. "
                    f"Take it down, or set SHOAL_CLUSTER_INDEX to another number than "
                    f"{layout.index}."
                )


def cgroup_roots(layout: Layout, nodes: int = NODES_MAX) -> list[Path]:
    """Return the directories of these nodes in the cgroup tree: one each, or one for each v1
    controller. The default is all that such a cluster may have."""
    names = [layout.cgroup(node) for node in range(nodes)]
    if (CGROUPS / "cgroup.controllers").exists():
        return [CGROUPS / name for name in names]
    # A controller's directory may have several names (cpu, cpuacct): each one counts once.
    mounted = sorted({path.resolve() for path in CGROUPS.glob("*") if path.is_dir()})
    return [path / name for path in mounted for name in names]


def create_cgroups(layout: Layout) -> None:
    """Make the cluster's cgroup roots; raise ClusterError if the tree is read-only."""
    roots = cgroup_roots(layout, layout.nodes)
    if not roots:
        raise ClusterError(f"No cgroups are mounted at {CGROUPS}: mount them (cgroup2 is best).")
    for root in roots:
        try:
            root.mkdir(exist_ok=True)
            _delegate(root)
            _set_weight(root)
        except OSError as error:
            if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
                raise
            raise ClusterError(
                f"{root} cannot be made ({error.strerror}): a cluster needs a writable cgroup "
                "tree. In a container, start it with --privileged --cgroupns=host."
            ) from None


def _set_weight(root: Path) -> None:
    """Give all pods together the processor time of `WEIGHT` processes outside.

    They would have that of one, so tests beside them could starve them.
    """
    for name, of_one in (("cpu.weight", 100), ("cpu.shares", 1024)):
        if (root / name).exists():
            (root / name).write_text(str(of_one * WEIGHT))


def _delegate(root: Path) -> None:
    """Give a new cgroup what its children need."""
    if root.parent == CGROUPS:
        available = (CGROUPS / "cgroup.controllers").read_text().split()
        wanted = " ".join(f"+{name}" for name in available)
        (CGROUPS / "cgroup.subtree_control").write_text(wanted)
        (root / "cgroup.subtree_control").write_text(wanted)
        return
    # A v1 cpuset starts empty, and an empty one admits no process.
    for name in ("cpuset.mems", "cpuset.cpus"):
        if (root / name).exists() and not (root / name).read_text().strip():
            (root / name).write_text((root.parent / name).read_text())


def remove_cgroups(layout: Layout, timeout_s: float = 20) -> None:
    """Remove the cluster's cgroups; the kernel frees them shortly after their processes end."""

    def removed() -> bool:
        for root in cgroup_roots(layout):
            for directory, _, _ in os.walk(root, topdown=False):
                try:
                    os.rmdir(directory)
                except OSError:
                    return False
        return True

    wait_for(f"the cgroups of {layout.name} to empty", removed, timeout_s)


def add_bridge(layout: Layout) -> None:
    """Connect the machine and the nodes. Nothing is forwarded beyond the bridge."""
    # With an address of its own, the bridge does not take that of the next port.
    mac = f"02:00:0a:c8:{layout.index:02x}:01"
    run("ip", "link", "add", layout.link, "address", mac, "type", "bridge")
    prefix = layout.node_network.prefixlen
    run("ip", "address", "add", f"{layout.host_address}/{prefix}", "dev", layout.link)
    run("ip", "link", "set", layout.link, "up")
    run("ip", "route", "add", str(layout.service_network), "via", layout.node_address)


def remove_link(name: str) -> None:
    """Remove a bridge or one of its ports; wait until it has gone."""
    link = Path("/sys/class/net") / name
    run("ip", "link", "delete", name, check=False)
    wait_for(f"the link {name} to go", lambda: not link.exists(), 30)


def save_sysctls(note: Path) -> None:
    """Save the settings that the kubelet will change; an earlier file is kept. Beside another
    cluster they are what that one has saved, because its kubelet has changed them."""
    if note.exists():
        return
    if earlier := _find_others(note):
        shutil.copy(earlier[0], note)
        return
    paths = [Path("/proc/sys") / name for name in SYSCTLS]
    values = {str(path): path.read_text().strip() for path in paths if path.exists()}
    note.write_text(json.dumps(values, indent=1))


def _find_others(note: Path) -> list[Path]:
    """Return what other clusters of this cache have saved."""
    return sorted(file for file in note.parent.parent.glob(f"*/{note.name}") if file != note)


def restore_sysctls(note: Path) -> None:
    """Restore what `save_sysctls` saved, unless another cluster runs: the last one does it."""
    if note.exists() and not _find_others(note):
        for path, value in json.loads(note.read_text()).items():
            Path(path).write_text(value)
