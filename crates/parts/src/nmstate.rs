//! The definitions and the admission policy that kubernetes-nmstate ships, from its Go module: what live clusters have.
//! None of it is kept in this repository.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::cache::Cache;

const MODULE: &str = "github.com/nmstate/kubernetes-nmstate";
const VERSION: &str = "v0.86.0";
/// The checksum of the module, as in go.sum.
const SUM: &str = "h1:p6YmPV/kFpz9q+5EQ2TzE47bw90EQrJkbPcN2vDrduU=";

const CRDS: [&str; 3] = [
    "nmstate.io_nodenetworkconfigurationenactments.yaml",
    "nmstate.io_nodenetworkconfigurationpolicies.yaml",
    "nmstate.io_nodenetworkstates.yaml",
];

fn place(cache: &Cache) -> PathBuf {
    cache.root().join(format!("kubernetes-nmstate-{VERSION}"))
}

/// The directory with `crds.yaml` and `admission.yaml`, if an earlier [`ensure`] created it.
pub(crate) fn find(cache: &Cache) -> Result<PathBuf> {
    let place = place(cache);
    if !place.is_dir() {
        bail!(
            "{} is missing: run `cargo xtask parts` (or `cargo xtask test`)",
            place.display()
        );
    }
    Ok(place)
}

/// Downloads the module when it is missing.
pub(crate) fn ensure(cache: &Cache, mut progress: impl FnMut(&str)) -> Result<PathBuf> {
    if let Ok(found) = find(cache) {
        return Ok(found);
    }
    let _lock = cache.lock(&mut progress)?;
    if let Ok(found) = find(cache) {
        return Ok(found);
    }
    progress("kubernetes-nmstate: definitions and admission policy out of its Go module");
    let shop = cache.workshop("kubernetes-nmstate")?;
    let output = Command::new("go")
        .args(["mod", "download", "-json"])
        .arg(format!("{MODULE}@{VERSION}"))
        .current_dir(&shop)
        .env("GOWORK", "off")
        .env("GOFLAGS", "-mod=mod")
        .stdin(Stdio::null())
        .output()
        .context("start `go`: is it installed and on the PATH?")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let field = |name: &str| {
        let key = format!("\"{name}\": \"");
        let (_, rest) = text.split_once(&key)?;
        rest.split('"').next().map(str::to_owned)
    };
    let (dir, sum) = (field("Dir"), field("Sum"));
    let Some(dir) = dir.filter(|_| output.status.success()) else {
        let text = String::from_utf8_lossy(&output.stderr);
        bail!("download {MODULE}@{VERSION}: {text}{text}");
    };
    if sum.as_deref() != Some(SUM) {
        bail!("{MODULE}@{VERSION} has checksum {sum:?}; {SUM} is pinned");
    }
    let deploy = PathBuf::from(dir).join("deploy");
    let read = |name: &str| {
        let path = deploy.join(name);
        fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
    };
    let mut crds = String::new();
    for name in CRDS {
        crds.push_str(&read(&format!("crds/{name}"))?);
        crds.push('\n');
    }
    let out = shop.join("out");
    fs::create_dir(&out)?;
    fs::write(out.join("crds.yaml"), crds)?;
    fs::write(
        out.join("admission.yaml"),
        admission(&read("handler/operator.yaml")?)?,
    )?;
    fs::rename(&out, place(cache)).context("move the manifests into place")?;
    let _ = fs::remove_dir_all(&shop);
    find(cache)
}

/// The documents of the operator's template that are admission policies, without their name prefix.
fn admission(template: &str) -> Result<String> {
    let kinds = [
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
    ];
    let policy = |document: &&str| {
        let mut lines = document.lines();
        lines.any(|line| kinds.iter().any(|kind| line == format!("kind: {kind}")))
    };
    let documents: Vec<String> = template
        .split("\n---\n")
        .filter(policy)
        .map(|document| document.replace("{{template \"handlerPrefix\" .}}", ""))
        .collect();
    let whole = documents.iter().all(|document| !document.contains("{{"));
    if documents.len() != 2 || !whole {
        bail!("the operator's template has other admission policies than {VERSION} had");
    }
    Ok(documents.join("\n---\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_admission_policy_is_taken_out_of_the_template() {
        let template = "kind: Service\nname: {{ .X }}\n---\nkind: ValidatingAdmissionPolicy\nname: {{template \"handlerPrefix\" .}}a\n---\nkind: ValidatingAdmissionPolicyBinding\nname: b\n";
        let taken = admission(template).unwrap();
        assert!(taken.contains("name: a\n---\n") && !taken.contains("Service"));
        assert!(admission("kind: Service\n").is_err());
    }
}
