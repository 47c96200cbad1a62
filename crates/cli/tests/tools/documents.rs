//! The manifests and commands of docs/first-network.md and docs/install.md, as a reader runs them.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use berth_testkit::{PodCall, fed, isolated};
use serde_json::{Value, json};

use crate::world::{BERTH, Said, World};

fn document(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    std::fs::read_to_string(root.join(path)).unwrap()
}

/// The code blocks of a language.
fn blocks(text: &str, language: &str) -> Vec<String> {
    let fence = format!("```{language}\n");
    let inner = |part: &str| part.split("```").next().unwrap().to_owned();
    text.split(&fence).skip(1).map(inner).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn berth_15_26_the_first_network_works_as_it_is_written() {
    let world = World::new().await;
    let text = document("docs/first-network.md");
    let manifests = blocks(&text, "yaml");
    assert_eq!(manifests.len(), 2, "a network and a pod");
    for manifest in &manifests {
        world.cluster.apply(manifest).await.unwrap();
    }
    let definition = world.cluster.kubectl(&[
        "--namespace=default",
        "get",
        "network-attachment-definition",
        "storage",
        "--output=json",
    ]);
    let definition = Said::from(definition.unwrap()).json();
    let config = definition["spec"]["config"].as_str().unwrap();
    let mut config: Value = serde_json::from_str(config).unwrap();
    // What the installed flat file tells the plugin.
    let slices =
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "berth-default" } });
    world.apply(slices).await;
    let account = world.cluster.agent("default", "worker-1").await.unwrap();
    let kubeconfig = account.kubeconfig();
    config["ipam"]["kubernetes"] = json!({ "kubeconfig": kubeconfig });
    let call = PodCall::new("berth", "ADD", "backup-0").in_namespace("default", "backup-0");
    let dir = tempfile::tempdir().unwrap();
    let mut command: Command = call.command(BERTH);
    command
        .env("NODENAME", "worker-1")
        .env("BERTH_DATABASE", dir.path().join("berth.db"))
        // The administrator lets networks name their cluster here.
        .env("BERTH_DEFINITION_PATHS", kubeconfig.parent().unwrap())
        .args(["cni", "--plugin", "berth"]);
    let added = Said::from(fed(&mut command, config.to_string()).unwrap()).json();
    let address = added["ips"][0]["address"].as_str().unwrap();
    assert!(text.contains(&format!("inet {address}")), "{added}");

    let berth = |line: &str| {
        let mut command = isolated(Command::new("sh"));
        let script = format!("berth() {{ {BERTH} \"$@\"; }}; {line}");
        command
            .args(["-c", &script])
            .env("PATH", "/usr/bin:/bin")
            .env("KUBECONFIG", world.cluster.kubeconfig())
            .stdin(std::process::Stdio::null());
        Said::of(command)
    };
    let lines = text.lines().filter_map(|line| line.strip_prefix("$ "));
    let lines: Vec<&str> = lines.filter(|line| line.starts_with("berth ")).collect();
    assert_eq!(lines.len(), 5, "{lines:?}");
    // The pools of other tests are elsewhere.
    let told = |line: &str| berth(&format!("{line} --namespace default"));
    let shown = told(lines[0]).succeeded();
    assert!(
        shown.lines().any(|row| same(row, &text, "10.88.0.0-24")),
        "{shown}"
    );
    let who = told(lines[1]).succeeded();
    assert!(who.contains("default/backup-0"), "{who}");
    let allocated = told(lines[2]).succeeded();
    assert!(
        allocated.lines().any(|row| same(row, &text, "10.88.0.9")),
        "{allocated}"
    );
    let asked = told(lines[3]).failed(4);
    let question = "release 10.88.0.9 of by-hand:lab/printer from 10.88.0.0-24?";
    assert!(asked.contains(question), "{asked}");
    assert!(text.contains(question));
    let refused = told(lines[4]).failed(7);
    let words = "delete the pod, and the address is released with it.";
    assert!(refused.contains(words) && text.contains(words), "{refused}");
}

/// Whether the document has that row, whatever its spaces.
fn same(row: &str, text: &str, begins: &str) -> bool {
    let words = |line: &str| {
        line.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    row.starts_with(begins) && text.lines().any(|line| words(line) == words(row))
}

#[tokio::test(flavor = "multi_thread")]
async fn berth_15_26_the_image_that_is_built_is_the_image_that_is_pulled() {
    let world = World::new().await;
    let text = document("docs/install.md");
    let first = blocks(&text, "console").remove(0);
    let line = |begins: &str| {
        let mut lines = first.lines().filter_map(|line| line.strip_prefix("$ "));
        lines
            .find(|line| line.starts_with(begins))
            .unwrap_or_else(|| panic!("{begins}"))
    };
    assert!(line("export IMAGE=").contains("berth:"));
    for command in ["podman build", "podman push"] {
        assert!(line(command).contains("$IMAGE"));
    }
    let built = line("export IMAGE=").split(['=', ' ']).nth(2).unwrap();
    let mut pages: Vec<String> = manifests();
    assert!(pages.len() > 20, "{pages:?}");
    pages.extend(
        [
            "docs/install.md",
            "docs/slices.md",
            "docs/vms.md",
            "docs/gcp.md",
            "README.md",
        ]
        .map(str::to_owned),
    );
    let mut deployed = BTreeSet::new();
    for page in pages {
        let text = document(&page);
        for part in ["agent", "controller", "vms", "k3s", "gcp"] {
            let pulls = format!("apply -k deploy/{part}");
            assert!(
                !text.contains(&pulls),
                "{page}: {pulls} pulls another image"
            );
        }
        let lines = text
            .lines()
            .map(|line| line.trim_start().trim_start_matches("$ "));
        for line in lines.filter(|line| line.starts_with("kubectl kustomize deploy/")) {
            let part = line.split_whitespace().nth(2).unwrap();
            let images = applied(&world, part, line, built);
            assert!(
                !images.is_empty() && images.iter().all(|image| image == built),
                "{page}: {line}: {images:?}"
            );
            deployed.insert(part.to_owned());
        }
    }
    let all = [
        "deploy/agent",
        "deploy/controller",
        "deploy/gcp",
        "deploy/gcp/agent",
        "deploy/gcp/controller",
        "deploy/vms",
    ];
    assert!(deployed.iter().eq(all), "{deployed:?}");
}

/// The manifests, by their paths in the repository: their comments say how they are applied.
fn manifests() -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut found = Vec::new();
    for dir in std::fs::read_dir(root.join("deploy")).unwrap() {
        let dir = dir.unwrap().path();
        for file in std::fs::read_dir(&dir).into_iter().flatten() {
            let path = file.unwrap().path();
            if path.extension().is_some_and(|end| end == "yaml") {
                let path = path.strip_prefix(&root).unwrap();
                found.push(path.to_str().unwrap().to_owned());
            }
        }
    }
    found
}

/// The images of what a line that deploys applies, with a kubectl that only renders.
fn applied(world: &World, part: &str, line: &str, image: &str) -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let rendered = world
        .cluster
        .kubectl(&["kustomize", root.join(part).to_str().unwrap()]);
    let rendered = Said::from(rendered.unwrap()).succeeded();
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("rendered"), rendered).unwrap();
    let kubectl = "kubectl() { case $1 in kustomize) cat rendered;; apply) cat;; esac; }";
    let script = format!("{kubectl}; IMAGE={image}; {line}");
    let mut command = isolated(Command::new("sh"));
    command.args(["-c", &script]).current_dir(dir.path());
    let applied = Said::of(command).succeeded();
    let lines = applied.lines().map(str::trim_start);
    let images = lines.filter_map(|line| line.trim_start_matches("- ").strip_prefix("image: "));
    images.map(str::to_owned).collect()
}
