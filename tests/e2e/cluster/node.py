"""The first process of the node's namespaces: it prepares them, then keeps the node running.

`local` starts it under `unshare` as `node.py STATE`, with only the standard library. It prints
`namespaces` on standard output, waits on standard input for `link`, and then becomes the init of
the node. It starts the processes of STATE/processes.json, restarts those that end, and reaps
orphans. A name in STATE/stopped stays stopped, so that a test can stop a kubelet; SIGHUP makes it
read that file again. When this process dies, the kernel ends everything in its pid namespace.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

#: The path of the state directory inside the node (control_plane.NODE_STATE).
STATE = Path("/run/shoal")
RESTART_DELAY_S = 1.0
SIGNALS = {signal.SIGCHLD, signal.SIGHUP}


def command(*argv: str) -> None:
    subprocess.run(argv, check=True, stdout=sys.stderr)


def prepare_mounts(state: str, in_memory: bool) -> None:
    """Mount a separate /run and /var, so that default paths leave nothing on the machine."""
    held = os.open(state, os.O_PATH)
    command("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")
    STATE.mkdir()
    # By descriptor: the path itself may be below the /run that was just covered.
    subprocess.run(
        ["mount", "--bind", f"/proc/self/fd/{held}", str(STATE)], check=True, pass_fds=(held,)
    )
    os.close(held)
    if in_memory:
        for name in ("var", "etcd"):
            command("mount", "-t", "tmpfs", "tmpfs", str(STATE / name))
    for name in ("lib/containerd", "lib/kubelet", "lib/cni", "log/pods", "tmp"):
        (STATE / "var" / name).mkdir(parents=True, exist_ok=True)
    command("mount", "--bind", str(STATE / "var"), "/var")
    # Volumes mounted for a pod have to reach existing containers.
    command("mount", "--make-rshared", "/")


def prepare_network(address: str, prefix: int, gateway: str, routes: dict[str, str]) -> None:
    command("ip", "link", "set", "lo", "up")
    command("ip", "address", "add", f"{address}/{prefix}", "dev", "eth0")
    command("ip", "link", "set", "eth0", "up")
    # A route has to exist before a process of the node can be redirected to a Service's address;
    # the machine behind it does not forward.
    command("ip", "route", "add", "default", "via", gateway)
    for network, node in routes.items():
        command("ip", "route", "add", network, "via", node)
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    bridged = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")
    if bridged.exists():
        bridged.write_text("1")


class Processes:
    """The node's processes: name to command, and which of them run."""

    def __init__(self, commands: dict[str, list[str]]) -> None:
        self.commands = commands
        self.running: dict[int, str] = {}
        self.due_s = dict.fromkeys(commands, 0.0)

    def start_due(self) -> None:
        now_s = time.monotonic()
        for name, due_s in sorted(self.due_s.items(), key=lambda item: item[1]):
            if due_s <= now_s and not (STATE / "stopped" / name).exists():
                self.start(name)

    def start(self, name: str) -> None:
        del self.due_s[name]
        with (STATE / "log" / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                self.commands[name],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS),
            )
        self.running[process.pid] = name
        # `reap` waits for it, so Popen must not treat it as running.
        process.returncode = 0

    def stop_unwanted(self) -> None:
        for pid, name in self.running.items():
            if (STATE / "stopped" / name).exists():
                os.kill(pid, signal.SIGTERM)

    def reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if name := self.running.pop(pid, None):
                code = os.waitstatus_to_exitcode(status)
                print(f"{name} ended with {code}", file=sys.stderr, flush=True)
                self.due_s[name] = time.monotonic() + RESTART_DELAY_S


def main() -> None:
    state = sys.argv[1]
    settings = json.loads((Path(state) / "node.json").read_text())
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    prepare_mounts(state, settings["in_memory"])
    print("namespaces", flush=True)
    if sys.stdin.readline() != "link\n":
        sys.exit("the link to the machine was not made")
    keys = ("address", "prefix", "gateway", "routes")
    prepare_network(*(settings[key] for key in keys))
    processes = Processes(settings["processes"])
    while True:
        processes.start_due()
        received = signal.sigtimedwait(SIGNALS, RESTART_DELAY_S)
        if received and received.si_signo == signal.SIGHUP:
            processes.stop_unwanted()
        processes.reap()


if __name__ == "__main__":
    main()
