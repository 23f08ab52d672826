// The version of Kueue, whose manager the tests run.
module shoal.dev/cluster/kueue

go 1.26.0

require sigs.k8s.io/kueue v0.19.1
