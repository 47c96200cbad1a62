// nmpolicyctl: what a policy's state is, by the engine that the captures of kubernetes-nmstate were designed for.
module berth.test/nmpolicy

go 1.26.0

tool github.com/nmstate/nmpolicy/cmd/nmpolicyctl

require (
	github.com/inconshreveable/mousetrap v1.0.0 // indirect
	github.com/nmstate/nmpolicy v0.6.0 // indirect
	github.com/spf13/cobra v1.3.0 // indirect
	github.com/spf13/pflag v1.0.5 // indirect
	gopkg.in/yaml.v2 v2.4.0 // indirect
	sigs.k8s.io/yaml v1.3.0 // indirect
)
