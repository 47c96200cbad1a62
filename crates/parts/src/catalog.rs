//! What is built: the Go modules, pinned by the go.mod and go.sum in this crate, and the binaries of each. The files
//! are embedded, so a test binary knows its versions wherever it runs.

use crate::cache::Cache;

/// One Go module. There are several because the parts pin conflicting versions of shared libraries.
#[derive(Debug)]
pub(crate) struct Module {
    pub name: &'static str,
    /// Name and content of each source file.
    pub files: &'static [(&'static str, &'static str)],
    pub binaries: &'static [Binary],
    /// Other names of the first binary, which depends on the name it is called by.
    pub aliases: &'static [&'static str],
    /// Additional linker flags.
    pub ldflags: &'static str,
    /// Files of the required modules.
    pub data: &'static [Data],
}

/// A file that is copied from a required module.
#[derive(Debug)]
pub(crate) struct Data {
    /// Path inside the module's directory of the cache.
    pub file: &'static str,
    /// The required module, and the path in it.
    pub module: &'static str,
    pub path: &'static str,
}

#[derive(Debug)]
pub(crate) struct Binary {
    /// Path inside the module's directory of the cache.
    pub file: &'static str,
    pub package: &'static str,
}

const fn binary(file: &'static str, package: &'static str) -> Binary {
    Binary { file, package }
}

/// The files of a module. Most contain no code of ours: their tools are main packages of required modules.
macro_rules! sources {
    ($name:literal $(, $extra:literal)*) => {
        &[
            ("go.mod", include_str!(concat!("../go/", $name, "/go.mod"))),
            ("go.sum", include_str!(concat!("../go/", $name, "/go.sum"))),
            $(($extra, include_str!(concat!("../go/", $name, "/", $extra))),)*
        ]
    };
}

pub(crate) const MODULES: &[Module] = &[
    Module {
        name: "kube",
        files: sources!("kube", "main.go"),
        binaries: &[binary("kube", ".")],
        aliases: &[
            "etcd",
            "kube-apiserver",
            "kube-controller-manager",
            "kube-scheduler",
            "kubelet",
            "kubectl",
        ],
        // Without it the API server and the kubelet report v0.0.0-master.
        ldflags: "-X k8s.io/component-base/version.gitVersion=v1.36.4 \
                  -X k8s.io/component-base/version.gitMajor=1 \
                  -X k8s.io/component-base/version.gitMinor=36",
        data: &[],
    },
    Module {
        name: "cni",
        files: sources!("cni"),
        binaries: &[
            binary(
                "plugins/bridge",
                "github.com/containernetworking/plugins/plugins/main/bridge",
            ),
            binary(
                "plugins/macvlan",
                "github.com/containernetworking/plugins/plugins/main/macvlan",
            ),
            binary(
                "plugins/ptp",
                "github.com/containernetworking/plugins/plugins/main/ptp",
            ),
            binary(
                "plugins/loopback",
                "github.com/containernetworking/plugins/plugins/main/loopback",
            ),
            binary(
                "plugins/host-local",
                "github.com/containernetworking/plugins/plugins/ipam/host-local",
            ),
            binary(
                "plugins/static",
                "github.com/containernetworking/plugins/plugins/ipam/static",
            ),
            binary("cnitool", "github.com/containernetworking/cni/cnitool"),
        ],
        aliases: &[],
        ldflags: "",
        data: &[],
    },
    Module {
        name: "whereabouts",
        files: sources!("whereabouts"),
        binaries: &[
            binary(
                "whereabouts",
                "github.com/k8snetworkplumbingwg/whereabouts/cmd",
            ),
            binary(
                "ip-control-loop",
                "github.com/k8snetworkplumbingwg/whereabouts/cmd/controlloop",
            ),
            binary(
                "node-slice-controller",
                "github.com/k8snetworkplumbingwg/whereabouts/cmd/nodeslicecontroller",
            ),
        ],
        aliases: &[],
        ldflags: "",
        data: &[],
    },
    Module {
        name: "containerd",
        files: sources!("containerd"),
        binaries: &[
            binary(
                "containerd",
                "github.com/containerd/containerd/v2/cmd/containerd",
            ),
            binary(
                "containerd-shim-runc-v2",
                "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
            ),
            binary("ctr", "github.com/containerd/containerd/v2/cmd/ctr"),
        ],
        aliases: &[],
        ldflags: "",
        data: &[],
    },
    Module {
        name: "multus",
        files: sources!("multus"),
        binaries: &[binary(
            "multus",
            "gopkg.in/k8snetworkplumbingwg/multus-cni.v4/cmd/multus",
        )],
        aliases: &[],
        ldflags: "",
        data: &[],
    },
    Module {
        name: "gce",
        files: sources!("gce", "main.go"),
        binaries: &[binary("gce", ".")],
        aliases: &[],
        ldflags: "",
        data: &[
            Data {
                file: "compute-api.json",
                module: "google.golang.org/api",
                path: "compute/v1/compute-api.json",
            },
            Data {
                file: "networkconnectivity-api.json",
                module: "google.golang.org/api",
                path: "networkconnectivity/v1/networkconnectivity-api.json",
            },
        ],
    },
    Module {
        name: "nmpolicy",
        files: sources!("nmpolicy"),
        binaries: &[binary(
            "nmpolicyctl",
            "github.com/nmstate/nmpolicy/cmd/nmpolicyctl",
        )],
        aliases: &[],
        ldflags: "",
        data: &[],
    },
];

impl Module {
    /// A name for exactly these sources and flags: whatever changes a binary changes the name (FNV-1a, because the
    /// standard library's hashers may differ between compilers and the cache outlives them).
    pub fn key(&self) -> String {
        let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
        let mut eat = |text: &str| {
            // The separator distinguishes ("ab", "c") from ("a", "bc").
            for byte in text.bytes().chain([0xff]) {
                hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            }
        };
        for (name, content) in self.files {
            eat(name);
            eat(content);
        }
        for binary in self.binaries {
            eat(binary.file);
            eat(binary.package);
        }
        for alias in self.aliases {
            eat(alias);
        }
        eat(self.ldflags);
        for data in self.data {
            eat(data.file);
            eat(data.path);
        }
        format!("{hash:016x}")
    }

    /// Whether the module's directory contains this file or directory; the empty name is the directory itself.
    pub fn yields(&self, file: &str) -> bool {
        file.is_empty()
            || self.aliases.contains(&file)
            || self.data.iter().any(|data| data.file == file)
            || self
                .binaries
                .iter()
                .any(|binary| binary.file == file || binary.file.starts_with(&format!("{file}/")))
    }
}

pub(crate) fn missing(cache: &Cache) -> Vec<&'static Module> {
    MODULES
        .iter()
        .filter(|module| !cache.place(module).is_dir())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_changes_with_what_is_built() {
        let plain = Module {
            name: "x",
            files: &[("go.mod", "module x\n")],
            binaries: &[],
            aliases: &[],
            ldflags: "",
            data: &[],
        };
        let bumped = Module {
            files: &[("go.mod", "module y\n")],
            ..plain
        };
        let flagged = Module {
            ldflags: "-X a=b",
            ..plain
        };
        assert_ne!(plain.key(), bumped.key());
        assert_ne!(plain.key(), flagged.key());
        assert_eq!(plain.key().len(), 16);
    }

    #[test]
    fn every_tool_of_a_go_mod_is_built_and_the_reverse() {
        // Those with a program of ours require packages, not tools.
        let ours = |module: &&Module| module.binaries.iter().any(|binary| binary.package == ".");
        for module in MODULES.iter().filter(|module| !ours(module)) {
            let go_mod = module.files[0].1;
            let tools: Vec<_> = go_mod
                .split_once("tool (")
                .map(|(_, rest)| rest.split_once(')').unwrap().0)
                .or_else(|| {
                    go_mod
                        .split_once("\ntool ")
                        .map(|(_, rest)| rest.lines().next().unwrap())
                })
                .unwrap()
                .split_whitespace()
                .collect();
            let mut built: Vec<_> = module.binaries.iter().map(|b| b.package).collect();
            built.sort_unstable();
            assert_eq!(built, tools, "{}", module.name);
        }
    }
}
