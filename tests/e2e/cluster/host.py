"""What the local cluster needs of the machine and changes on it, and how that is put back.

A cluster touches the machine in four places outside its own namespaces: Debian packages, which
stay; one link with two routes, which goes with the node's process; a directory in the cgroup
tree; and the kernel's settings that a kubelet writes, which are saved before and restored after.
"""

from __future__ import annotations

import errno
import ipaddress
import json
import os
import shutil
from pathlib import Path

from .commands import run, wait_for
from .layout import ClusterError, Layout

#: Debian package -> a file that is there once it is installed.
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


def require_root() -> None:
    """Raises unless this process may make namespaces."""
    if os.geteuid() != 0:
        raise ClusterError(
            "A local cluster needs root, for namespaces and cgroups: run the command with sudo, "
            "or start a Docker engine and it will use kind."
        )
    if run("unshare", "--net", "--mount", "--pid", "--fork", "true", check=False).returncode:
        raise ClusterError(
            "This machine allows root no namespaces of its own (CAP_SYS_ADMIN is missing): use a "
            "virtual machine or a privileged container, or start a Docker engine and use kind."
        )


def install_packages() -> None:
    """Installs the Debian packages that are missing; they stay when the cluster goes."""
    missing = [name for name, path in PACKAGES.items() if not Path(path).exists()]
    if not missing:
        return
    if not shutil.which("apt-get"):
        raise ClusterError(
            f"Install {', '.join(missing)} by this system's package tool: only Debian's is known."
        )
    # The systemd units are not started: the cluster runs a containerd of its own.
    quiet = {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    install = ("apt-get", "install", "--yes", "--no-install-recommends", *missing)
    if run(*install, env=quiet, check=False).returncode:
        run("apt-get", "update")
        run(*install, env=quiet)


def require_free_addresses(layout: Layout) -> None:
    """Raises if the machine has a route that overlaps one of the cluster's networks."""
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


def cgroup_roots(layout: Layout) -> list[Path]:
    """The cluster's own directories in the cgroup tree: one, or one for each v1 controller."""
    if (CGROUPS / "cgroup.controllers").exists():
        return [CGROUPS / layout.name]
    # A controller's directory may have several names (cpu, cpuacct): each one counts once.
    mounted = sorted({path.resolve() for path in CGROUPS.glob("*") if path.is_dir()})
    return [path / layout.name for path in mounted]


def create_cgroups(layout: Layout) -> None:
    """Makes the cluster's cgroup roots; raises a clear error where the tree is read-only."""
    roots = cgroup_roots(layout)
    if not roots:
        raise ClusterError(f"No cgroups are mounted at {CGROUPS}: mount them (cgroup2 is best).")
    for root in roots:
        try:
            root.mkdir(exist_ok=True)
            _delegate(root)
        except OSError as error:
            if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
                raise
            raise ClusterError(
                f"{root} cannot be made ({error.strerror}): a cluster needs a writable cgroup "
                "tree. In a container, start it with --privileged --cgroupns=host."
            ) from None


def _delegate(root: Path) -> None:
    """Gives a new cgroup what its children will need."""
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
    """Removes the cluster's cgroups; the kernel lets go of them shortly after their processes."""

    def removed() -> bool:
        for root in cgroup_roots(layout):
            for directory, _, _ in os.walk(root, topdown=False):
                try:
                    os.rmdir(directory)
                except OSError:
                    return False
        return True

    wait_for(f"the cgroups of {layout.name} to empty", removed, timeout_s)


def save_sysctls(note: Path) -> None:
    """Writes down the settings that the kubelet will change; an earlier note is kept."""
    if note.exists():
        return
    paths = [Path("/proc/sys") / name for name in SYSCTLS]
    values = {str(path): path.read_text().strip() for path in paths if path.exists()}
    note.write_text(json.dumps(values, indent=1))


def restore_sysctls(note: Path) -> None:
    """Puts back what `save_sysctls` wrote down."""
    if note.exists():
        for path, value in json.loads(note.read_text()).items():
            Path(path).write_text(value)
