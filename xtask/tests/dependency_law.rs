//! Who may depend on whom, as a failing test. Each ban states its reason (ARCHITECTURE.md).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// `package` must not reach any of `never`, directly or through others. Metadata shows the features of the whole
/// workspace, so a crate that another member enables deep inside a shared dependency (getrandom under digest) can't
/// be distinguished here and is not listed.
struct Ban {
    package: &'static str,
    never: &'static [&'static str],
    reason: &'static str,
}

/// The fronts: each serves one kind of user, and none knows another.
const FRONTS: &[&str] = &["berth-pods", "berth-vms", "berth-nodes", "berth-gcp"];

/// The shared crates. None of these reaches any front: only the command (`crates/cli/src/fronts.rs`, `controller.rs`)
/// puts fronts into the shells.
const SHARED: &[&str] = &[
    "berth-core",
    "berth-api",
    "berth-cni",
    "berth-kube",
    "berth-ledger",
    "berth-whereabouts",
    "berth-node",
    "berth-desk",
    "berth-attachment",
    "berth-probe",
    "berth-leader",
    "berth-listen",
    "berth-slices",
    "berth-front",
    "berth-collector",
    "berth-networks",
    "berth-agent",
    "berth-controller",
    "berth-install",
    "berth-plugin",
];

/// The processes that run fronts: a front that reached one could not be run by another.
const SHELLS: &[&str] = &["berth-agent", "berth-controller", "berth"];

const BANS: &[Ban] = &[
    Ban {
        package: "berth-core",
        never: &[
            "tokio",
            "rusqlite",
            "kube",
            "kube-client",
            "hyper",
            "rustls",
            "reqwest",
            "axum",
            "russh",
            "rustix",
            "rand",
            "tracing",
            "jiff",
            "mio",
            "socket2",
        ],
        reason: "core is pure: no I/O, clock or randomness of its own, so that every rule can be replayed",
    },
    Ban {
        package: "berth-cni",
        never: &[
            "tokio",
            "rustls",
            "ring",
            "kube",
            "kube-client",
            "hyper",
            "rusqlite",
            "clap",
        ],
        reason: "the plugin is built from it, and is exec'd for every pod",
    },
    Ban {
        package: "berth-plugin",
        never: &[
            "tokio",
            "rustls",
            "ring",
            "kube",
            "kube-client",
            "hyper",
            "rusqlite",
            "clap",
            "tracing",
        ],
        reason: "a static binary under 1 MB that starts in a fraction of a millisecond",
    },
    Ban {
        package: "berth-kube",
        never: &[
            "berth-ledger",
            "berth-desk",
            "berth-front",
            "axum",
            "rusqlite",
        ],
        reason: "Kubernetes plumbing for everyone: it knows no pool, no front and no store",
    },
    Ban {
        package: "berth-ledger",
        never: &["berth-whereabouts", "berth-desk", "berth-front", "axum"],
        reason: "a ledger keeps pools of any kind: it knows neither who asks nor a front's objects",
    },
    Ban {
        package: "berth-whereabouts",
        never: &["berth-desk", "berth-slices", "berth-front", "axum"],
        reason: "it reads and writes objects; slices, pods and the controller decide what",
    },
    Ban {
        package: "berth-node",
        never: &["berth-desk", "berth-slices", "berth-front", "axum"],
        reason: "it keeps one machine's state; what is allocated from it, and for whom, is decided above",
    },
    Ban {
        package: "berth-desk",
        never: &["berth-front", "axum"],
        reason: "one desk serves all fronts without a special case for any",
    },
    Ban {
        package: "berth-attachment",
        never: &["berth-core", "berth-ledger", "kube", "hyper"],
        reason: "it stages outside effects of any front; what the effect is, a driver knows",
    },
    Ban {
        package: "berth-collector",
        never: &["berth-networks", "berth-slices"],
        reason: "it collects for every front; what a network or a slice is, a front's policy knows",
    },
    Ban {
        package: "berth-networks",
        never: &["berth-desk", "berth-front", "axum"],
        reason: "it reads what networks are configured to; pools are another's business",
    },
    Ban {
        package: "berth-leader",
        never: &["berth-front", "berth-cni"],
        reason: "it carries requests from desk to desk; whose they are is nothing to it",
    },
    Ban {
        package: "berth-listen",
        never: &["berth-core", "berth-ledger", "kube", "kube-client"],
        reason: "it serves HTTP for everybody and knows nothing of what is served",
    },
    Ban {
        package: "berth-slices",
        never: &["berth-front", "axum"],
        reason: "slices serve every front and depend on none",
    },
    Ban {
        package: "berth-pods",
        never: &["russh", "nmstate"],
        reason: "what one front alone needs is not built for another",
    },
    Ban {
        package: "berth-nodes",
        never: &["nmstate"],
        reason: "nmstate runs in a program of its own",
    },
    Ban {
        package: "berth-controller",
        never: &["berth-agent", "russh"],
        reason: "it works for the whole cluster and keeps nothing on a node; fronts bring their tasks themselves",
    },
    Ban {
        package: "berth-install",
        never: &["kube", "kube-client", "rusqlite", "hyper", "rustls"],
        reason: "it puts files on a node, before there is a cluster to talk to",
    },
    Ban {
        package: "berth-parts",
        never: &["tokio", "kube", "kube-client", "hyper"],
        reason: "the test command builds it first and must show progress soon",
    },
    Ban {
        package: "berth",
        never: &["openssl-sys", "native-tls", "aws-lc-sys", "aws-lc-rs"],
        reason: "one TLS provider everywhere: ring",
    },
    Ban {
        package: "berth",
        never: &["nmstate", "berth-host"],
        reason: "nmstate brings 115 crates: berth-host alone has them, outside the quick start",
    },
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .to_owned()
}

fn metadata() -> Value {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--locked", "--offline"])
        .args(["--filter-platform", "x86_64-unknown-linux-gnu"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Normal and build dependencies of every package, by id; dependencies of tests do not ship.
fn graph(metadata: &Value) -> BTreeMap<String, Vec<String>> {
    let nodes = metadata["resolve"]["nodes"].as_array().unwrap();
    let shipped = |dependency: &&Value| {
        let kinds = dependency["dep_kinds"].as_array().unwrap();
        kinds.iter().any(|kind| kind["kind"] != "dev")
    };
    let edges = |node: &Value| {
        let all = node["deps"].as_array().unwrap().iter().filter(shipped);
        all.map(|dependency| dependency["pkg"].as_str().unwrap().to_owned())
            .collect()
    };
    nodes
        .iter()
        .map(|node| (node["id"].as_str().unwrap().to_owned(), edges(node)))
        .collect()
}

/// The packages of the workspace and what each reaches, with the way there.
struct Reach {
    ids: BTreeMap<String, String>,
    names: BTreeMap<String, String>,
    graph: BTreeMap<String, Vec<String>>,
}

impl Reach {
    fn read() -> Reach {
        let metadata = metadata();
        let packages = metadata["packages"].as_array().unwrap();
        let names: BTreeMap<String, String> = packages
            .iter()
            .map(|package| {
                let text = |key: &str| package[key].as_str().unwrap().to_owned();
                (text("id"), text("name"))
            })
            .collect();
        let ids = names.iter().map(|(id, name)| (name.clone(), id.clone()));
        Reach {
            ids: ids.collect(),
            graph: graph(&metadata),
            names,
        }
    }

    /// How `package` reaches each of `never`, if it does.
    fn broken(&self, package: &str, never: &[&str], reason: &str) -> Vec<String> {
        let start = self.ids.get(package);
        let start =
            start.unwrap_or_else(|| panic!("the law speaks of {package}, which is not there"));
        let mut broken = Vec::new();
        let mut reached = BTreeSet::new();
        let mut queue = VecDeque::from([(start.clone(), package.to_owned())]);
        while let Some((id, path)) = queue.pop_front() {
            for next in self.graph.get(&id).into_iter().flatten() {
                let name = &self.names[next];
                if reached.insert(next.clone()) {
                    let path = format!("{path} -> {name}");
                    if never.contains(&name.as_str()) {
                        broken.push(format!("{path}\n    {reason}"));
                    }
                    queue.push_back((next.clone(), path));
                }
            }
        }
        broken
    }
}

#[test]
fn no_crate_reaches_what_the_law_forbids() {
    let reach = Reach::read();
    let mut broken = Vec::new();
    for ban in BANS {
        broken.extend(reach.broken(ban.package, ban.never, ban.reason));
    }
    for package in SHARED {
        let reason =
            "it is there for every front: fronts are registered in the command, and nowhere else";
        broken.extend(reach.broken(package, FRONTS, reason));
    }
    for front in FRONTS {
        let others: Vec<&str> = FRONTS.iter().copied().filter(|one| one != front).collect();
        broken.extend(reach.broken(front, &others, "fronts do not know each other"));
        broken.extend(reach.broken(front, SHELLS, "a front is run by a shell and knows none"));
    }
    assert!(
        broken.is_empty(),
        "the dependency law is broken:\n{}",
        broken.join("\n")
    );
}

/// A newcomer reads the picture and the code map first to find a crate.
#[test]
fn the_architecture_shows_every_crate() {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let picture = text.split("## Who may depend on whom").nth(1).unwrap();
    let picture = picture.split("```").nth(1).unwrap();
    let words: BTreeSet<&str> = picture
        .split(|c: char| !c.is_alphanumeric() && c != '-')
        .collect();
    let mut missing = Vec::new();
    for entry in std::fs::read_dir(root().join("crates")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if !text.contains(&format!("| `crates/{name}` |")) {
            missing.push(format!("crates/{name} in the code map"));
        }
        if !words.contains(name.as_str()) {
            missing.push(format!("{name} in the picture"));
        }
    }
    assert!(missing.is_empty(), "ARCHITECTURE.md lacks {missing:?}");
}

/// The README's first command builds the default members: the CLI, which must not reach nmstate. Only `berth-host`
/// may depend on nmstate, even in tests: that is 115 crates.
#[test]
fn the_quick_start_builds_no_nmstate() {
    let metadata = metadata();
    let packages = metadata["packages"].as_array().unwrap();
    let named = |id: &Value| {
        let package = packages.iter().find(|package| package["id"] == *id);
        package.unwrap()["name"].as_str().unwrap().to_owned()
    };
    let default = metadata["workspace_default_members"].as_array().unwrap();
    assert_eq!(default.iter().map(named).collect::<Vec<_>>(), ["berth"]);
    let mut have = Vec::new();
    for member in metadata["workspace_members"].as_array().unwrap() {
        let package = packages.iter().find(|package| package["id"] == *member);
        let mut all = package.unwrap()["dependencies"].as_array().unwrap().iter();
        let forbidden = ["nmstate", "nispor", "serde_yaml", "berth-host"];
        if all.any(|one| forbidden.contains(&one["name"].as_str().unwrap())) {
            have.push(named(member));
        }
    }
    assert_eq!(
        have,
        ["berth-host"],
        "only berth-host depends on nmstate and its crates"
    );
}

/// Only their ledger writes pool objects: a front that named their types could write around the
/// preconditions that keep addresses unique (I1).
#[test]
fn only_their_ledger_names_pool_objects() {
    const POOL_TYPES: &[&str] = &[
        "IPPool",
        "IPPoolSpec",
        "IPAllocation",
        "OverlappingRangeIPReservation",
        "SliceClaim",
        "NodeSlicePool",
        "NodeSlicePoolSpec",
        "NodeSlicePoolStatus",
    ];
    const MAY: &[&str] = &["api", "whereabouts", "testkit", "bench"];
    let mut broken = Vec::new();
    for entry in std::fs::read_dir(root().join("crates")).unwrap() {
        let krate = entry.unwrap().path();
        if MAY.iter().any(|name| krate.ends_with(name)) {
            continue;
        }
        for file in sources(&krate.join("src")) {
            let text = std::fs::read_to_string(&file).unwrap();
            for (number, line) in text.lines().enumerate() {
                let code = line.split("//").next().unwrap_or_default();
                let words = code.split(|c: char| !c.is_alphanumeric() && c != '_');
                if code.contains("berth_api")
                    && words.clone().any(|word| POOL_TYPES.contains(&word))
                {
                    broken.push(format!("{}:{}: {line}", file.display(), number + 1));
                }
            }
        }
    }
    assert!(
        broken.is_empty(),
        "go through the Ledger trait:\n{}",
        broken.join("\n")
    );
}

/// A file has one subject; past 600 lines it has several.
#[test]
fn no_source_file_is_over_600_lines() {
    let mut long = Vec::new();
    for folder in ["crates", "xtask"] {
        for file in sources(&root().join(folder)) {
            let lines = std::fs::read_to_string(&file).unwrap().lines().count();
            if lines > 600 {
                long.push(format!("{}: {lines}", file.display()));
            }
        }
    }
    assert!(long.is_empty(), "split these:\n{}", long.join("\n"));
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let Ok(entries) = std::fs::read_dir(folder) else {
        return found;
    };
    for entry in entries {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}
