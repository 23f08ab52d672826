"""The processes of the nodes and their files: pure functions from a layout to text.

`local` writes the files and starts `node` with the processes. The first node also has the control
plane and CoreDNS. Paths are those in a node's mount namespace, where its state directory is at
`NODE_STATE`. The files are JSON where the programs expect YAML, which contains JSON.

The settings that differ from kubeadm's defaults, with the reasons:
* an OOM score below the parent's requires CAP_SYS_RESOURCE, which containers and small virtual
  machines lack, so no process requests one;
* the controllers' default request rate delays a new namespace's ServiceAccount by seconds;
* there is one API server and one of each controller, so leader election only costs time;
* conntrack limits belong to the machine, so kube-proxy does not change them.
"""

from __future__ import annotations

import json
from pathlib import Path

from .layout import KUBERNETES_VERSION, POLICIES, POLICIES_API, ZONE, Layout

NODE_STATE = Path("/run/shoal")
PKI = NODE_STATE / "pki"
PAUSE_IMAGE = "localhost/shoal/pause:1"
CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
#: The group in admin.conf, which is bound to cluster-admin.
ADMIN_GROUP = "kubeadm:cluster-admins"


def kubeadm_config(layout: Layout, certificates: Path) -> str:
    """Return the configuration of kubeadm's certificate and kubeconfig phases, run on the host."""
    init = {
        "apiVersion": "kubeadm.k8s.io/v1beta4",
        "kind": "InitConfiguration",
        "localAPIEndpoint": {"advertiseAddress": layout.node_address, "bindPort": 6443},
        "nodeRegistration": {
            "name": layout.node_name(0),
            "criSocket": f"unix://{CONTAINERD_SOCKET}",
        },
    }
    cluster = {
        "apiVersion": "kubeadm.k8s.io/v1beta4",
        "kind": "ClusterConfiguration",
        "kubernetesVersion": KUBERNETES_VERSION,
        "clusterName": layout.name,
        "controlPlaneEndpoint": f"{layout.node_address}:6443",
        "certificatesDir": str(certificates),
        "encryptionAlgorithm": "ECDSA-P256",
        "networking": {
            "serviceSubnet": str(layout.service_network),
            "podSubnet": str(layout.pod_network),
        },
    }
    return f"{json.dumps(init)}\n---\n{json.dumps(cluster)}\n"


def files(layout: Layout, node: int, *, cgroup_v1: bool) -> dict[str, str]:
    """Return file name under the node's state directory -> content."""
    return {
        "containerd.toml": _containerd(),
        "cni/10-pods.conflist": json.dumps(_network(layout, node), indent=1),
        "kubelet.json": json.dumps(_kubelet(layout, node, cgroup_v1=cgroup_v1), indent=1),
        "kube-proxy.json": json.dumps(_proxy(layout, node), indent=1),
        "Corefile": _corefile(layout),
        "resolv.conf": "",
    }


def _containerd() -> str:
    return f"""version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
  address = "{CONTAINERD_SOCKET}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{NODE_STATE}/cni"
"""


def _network(layout: Layout, node: int) -> dict[str, object]:
    bridge = {
        "type": "bridge",
        "bridge": "pods0",
        "isDefaultGateway": True,
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "ranges": [[{"subnet": str(layout.pods_of(node))}]],
            "dataDir": "/run/addresses",
        },
    }
    portmap = {"type": "portmap", "capabilities": {"portMappings": True}}
    return {"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge, portmap]}


def _kubelet(layout: Layout, node: int, *, cgroup_v1: bool) -> dict[str, object]:
    config: dict[str, object] = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": f"{PKI}/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "cgroupDriver": "cgroupfs",
        # A kubelet removes the cgroups of pods that it does not have.
        "cgroupRoot": f"/{layout.cgroup(node)}",
        "clusterDNS": [layout.dns_address],
        "clusterDomain": "cluster.local",
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "resolvConf": f"{NODE_STATE}/resolv.conf",
        "volumePluginDir": f"{NODE_STATE}/volumeplugins",
        "failSwapOn": False,
        "oomScoreAdj": 0,
        "maxPods": 250,
        # Images are loaded by hand and the disk is shared: neither may vanish during a test.
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {"memory.available": "100Mi"},
        "nodeStatusUpdateFrequency": "5s",
        "syncFrequency": "10s",
    }
    if cgroup_v1:
        config["failCgroupV1"] = False
    return config


def _proxy(layout: Layout, node: int) -> dict[str, object]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": f"{PKI}/kube-proxy.conf"},
        "mode": "nftables",
        "clusterCIDR": str(layout.pod_network),
        "hostnameOverride": layout.node_name(node),
        "oomScoreAdj": 0,
        "conntrack": {
            "maxPerCore": 0,
            "tcpEstablishedTimeout": "0s",
            "tcpCloseWaitTimeout": "0s",
        },
        "nftables": {"minSyncPeriod": "0s"},
    }


def _corefile(layout: Layout) -> str:
    return f""".:53 {{
    bind {layout.node_address}
    errors
    ready {layout.node_address}:8181
    kubernetes cluster.local in-addr.arpa {{
        kubeconfig {PKI}/super-admin.conf
        pods insecure
        ttl 5
    }}
    cache 5
}}
"""


def processes(layout: Layout, node: int, hyper: Path, coredns: Path) -> dict[str, list[str]]:
    """Return name -> command, in start order."""
    commands = {} if node else _control_plane(layout, hyper, coredns)
    commands |= _of_every_node(layout, node, hyper)
    return {name: [str(word) for word in command] for name, command in commands.items()}


def _control_plane(layout: Layout, hyper: Path, coredns: Path) -> dict[str, list[str | Path]]:
    etcd = "http://127.0.0.1:2379"
    return {
        "etcd": [
            hyper,
            "etcd",
            f"--data-dir={NODE_STATE}/etcd",
            f"--listen-client-urls={etcd}",
            f"--advertise-client-urls={etcd}",
            "--listen-peer-urls=http://127.0.0.1:2380",
            # The cluster ends with its node: a crash that loses writes loses the cluster too.
            "--unsafe-no-fsync",
        ],
        "kube-apiserver": [hyper, "kube-apiserver", *_apiserver_flags(layout, etcd)],
        "kube-controller-manager": [
            hyper,
            "kube-controller-manager",
            *_client_flags("controller-manager"),
            f"--client-ca-file={PKI}/ca.crt",
            f"--requestheader-client-ca-file={PKI}/front-proxy-ca.crt",
            f"--root-ca-file={PKI}/ca.crt",
            f"--cluster-signing-cert-file={PKI}/ca.crt",
            f"--cluster-signing-key-file={PKI}/ca.key",
            f"--service-account-private-key-file={PKI}/sa.key",
            "--use-service-account-credentials=true",
            "--allocate-node-cidrs=true",
            f"--cluster-cidr={layout.pod_network}",
            "--node-cidr-mask-size=22",
            f"--service-cluster-ip-range={layout.service_network}",
            f"--flex-volume-plugin-dir={NODE_STATE}/volumeplugins",
            # A stopped kubelet is detected sooner than in production.
            "--node-monitor-grace-period=20s",
        ],
        "kube-scheduler": [hyper, "kube-scheduler", *_client_flags("scheduler")],
        "coredns": [coredns, "-conf", f"{NODE_STATE}/Corefile"],
    }


def _of_every_node(layout: Layout, node: int, hyper: Path) -> dict[str, list[str | Path]]:
    name = layout.node_name(node)
    return {
        "containerd": ["containerd", f"--config={NODE_STATE}/containerd.toml"],
        "kubelet": [
            hyper,
            "kubelet",
            f"--config={NODE_STATE}/kubelet.json",
            f"--kubeconfig={PKI}/kubelet.conf",
            f"--hostname-override={name}",
            f"--node-ip={layout.address(node)}",
            f"--node-labels={ZONE}={layout.zone(node)}",
        ],
        "kube-proxy": [hyper, "kube-proxy", f"--config={NODE_STATE}/kube-proxy.json"],
        "volumes": [
            hyper,
            "volumes",
            f"--kubeconfig={PKI}/super-admin.conf",
            f"--root={NODE_STATE}/volumes",
            f"--node={name}",
        ],
    }


def _client_flags(name: str) -> list[str]:
    kubeconfig = f"{PKI}/{name}.conf"
    return [
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        "--bind-address=127.0.0.1",
        "--leader-elect=false",
        "--kube-api-qps=500",
        "--kube-api-burst=1000",
    ]


def _apiserver_flags(layout: Layout, etcd: str) -> list[str]:
    return [
        f"--advertise-address={layout.node_address}",
        "--secure-port=6443",
        "--allow-privileged=true",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        f"--feature-gates={POLICIES}=true",
        f"--runtime-config={POLICIES_API}=true",
        f"--etcd-servers={etcd}",
        f"--service-cluster-ip-range={layout.service_network}",
        f"--client-ca-file={PKI}/ca.crt",
        f"--tls-cert-file={PKI}/apiserver.crt",
        f"--tls-private-key-file={PKI}/apiserver.key",
        f"--kubelet-client-certificate={PKI}/apiserver-kubelet-client.crt",
        f"--kubelet-client-key={PKI}/apiserver-kubelet-client.key",
        "--kubelet-preferred-address-types=InternalIP",
        f"--proxy-client-cert-file={PKI}/front-proxy-client.crt",
        f"--proxy-client-key-file={PKI}/front-proxy-client.key",
        f"--requestheader-client-ca-file={PKI}/front-proxy-ca.crt",
        "--requestheader-allowed-names=front-proxy-client",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-username-headers=X-Remote-User",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--service-account-key-file={PKI}/sa.pub",
        f"--service-account-signing-key-file={PKI}/sa.key",
    ]


def objects(layout: Layout) -> str:
    """Return the initial objects of a kubeadm and kind cluster, as one manifest."""
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": ADMIN_GROUP},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": "cluster-admin",
        },
        "subjects": [
            {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": ADMIN_GROUP}
        ],
    }
    storage = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {
            "name": "standard",
            "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
        },
        "provisioner": "rancher.io/local-path",
        "volumeBindingMode": "WaitForFirstConsumer",
        "reclaimPolicy": "Delete",
    }
    ports = [
        {"name": "dns", "port": 53, "protocol": "UDP"},
        {"name": "dns-tcp", "port": 53, "protocol": "TCP"},
    ]
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "kube-dns", "namespace": "kube-system"},
        "spec": {"clusterIP": layout.dns_address, "ports": ports},
    }
    # CoreDNS is a process of the node, not a pod, so nothing else writes its endpoints.
    endpoints = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": "kube-dns",
            "namespace": "kube-system",
            "labels": {"kubernetes.io/service-name": "kube-dns"},
        },
        "addressType": "IPv4",
        "endpoints": [{"addresses": [layout.node_address], "conditions": {"ready": True}}],
        "ports": ports,
    }
    items = [binding, storage, service, endpoints]
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
