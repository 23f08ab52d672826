package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"
)

// directories gives every claim a directory of the node that its pod runs on, under the
// provisioner name that kind uses, so that manifests see no difference between the two clusters.
// Each node runs one, for its own claims and volumes.
type directories struct{ root, node string }

const selectedNode = "volume.kubernetes.io/selected-node"

func (d directories) ShouldProvision(_ context.Context, claim *core.PersistentVolumeClaim) bool {
	return claim.Annotations[selectedNode] == d.node
}

func (d directories) ShouldDelete(_ context.Context, volume *core.PersistentVolume) bool {
	affinity := volume.Spec.NodeAffinity
	if affinity == nil || affinity.Required == nil {
		return false
	}
	for _, term := range affinity.Required.NodeSelectorTerms {
		for _, wanted := range term.MatchExpressions {
			if wanted.Key == core.LabelHostname && slices.Contains(wanted.Values, d.node) {
				return true
			}
		}
	}
	return false
}

func (d directories) Provision(
	_ context.Context, options controller.ProvisionOptions,
) (*core.PersistentVolume, controller.ProvisioningState, error) {
	claim := options.PVC
	path := filepath.Join(d.root, options.PVName+"_"+claim.Namespace+"_"+claim.Name)
	if err := os.Mkdir(path, 0o777); err != nil && !os.IsExist(err) {
		return nil, controller.ProvisioningFinished, err
	}
	// Mkdir obeys the umask, and pods write as any user.
	if err := os.Chmod(path, 0o777); err != nil {
		return nil, controller.ProvisioningFinished, err
	}
	onThisNode := core.NodeSelectorRequirement{
		Key: core.LabelHostname, Operator: core.NodeSelectorOpIn, Values: []string{d.node},
	}
	return &core.PersistentVolume{
		ObjectMeta: meta.ObjectMeta{Name: options.PVName},
		Spec: core.PersistentVolumeSpec{
			PersistentVolumeReclaimPolicy: *options.StorageClass.ReclaimPolicy,
			AccessModes:                   claim.Spec.AccessModes,
			Capacity: core.ResourceList{
				core.ResourceStorage: claim.Spec.Resources.Requests[core.ResourceStorage],
			},
			PersistentVolumeSource: core.PersistentVolumeSource{
				Local: &core.LocalVolumeSource{Path: path},
			},
			NodeAffinity: &core.VolumeNodeAffinity{Required: &core.NodeSelector{
				NodeSelectorTerms: []core.NodeSelectorTerm{
					{MatchExpressions: []core.NodeSelectorRequirement{onThisNode}},
				},
			}},
		},
	}, controller.ProvisioningFinished, nil
}

func (d directories) Delete(_ context.Context, volume *core.PersistentVolume) error {
	local := volume.Spec.Local
	if local == nil || filepath.Dir(local.Path) != d.root {
		return fmt.Errorf("volume %s is not a directory of %s", volume.Name, d.root)
	}
	return os.RemoveAll(local.Path)
}

func provisionVolumes() {
	kubeconfig := flag.String("kubeconfig", "", "how to reach the API server")
	root := flag.String("root", "", "directory of the node that holds the volumes")
	node := flag.String("node", "", "name of the node")
	flag.Parse()
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		klog.Fatal(err)
	}
	ctx := context.Background()
	controller.NewProvisionController(
		ctx, kubernetes.NewForConfigOrDie(config), "rancher.io/local-path",
		directories{filepath.Clean(*root), *node}, controller.LeaderElection(false),
	).Run(ctx)
}
