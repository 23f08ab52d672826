// The Lua engine by which Argo CD v3.5.7 runs the scripts of its ConfigMap, pinned as there.
module shoal.dev/argocd-lua

go 1.25.0

require (
	github.com/yuin/gopher-lua v1.1.2
	layeh.com/gopher-json v0.0.0-20190114024228-97fed8db8427
)
