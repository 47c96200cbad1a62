//! A subnet's path. Its project is the host project of a shared VPC, where that differs from the VM's own.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// `projects/{project}/regions/{region}/subnetworks/{name}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubnetPath {
    pub project: String,
    pub region: String,
    pub name: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "'{0}' is not a subnet's path: projects/PROJECT/regions/REGION/subnetworks/NAME is expected"
)]
pub struct InvalidSubnet(String);

impl fmt::Display for SubnetPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SubnetPath {
            project,
            region,
            name,
        } = self;
        write!(f, "projects/{project}/regions/{region}/subnetworks/{name}")
    }
}

impl FromStr for SubnetPath {
    type Err = InvalidSubnet;

    /// Of a path, or of the URL that ends with it.
    fn from_str(text: &str) -> Result<SubnetPath, InvalidSubnet> {
        let invalid = || InvalidSubnet(text.chars().take(200).collect());
        let path = text.find("projects/").and_then(|at| text.get(at..));
        let parts: Vec<&str> = path.ok_or_else(invalid)?.split('/').collect();
        // A domain-scoped project has a dot and a colon.
        let plain = |part: &str| {
            let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | ':' | '_');
            !part.is_empty() && part.chars().all(allowed)
        };
        match parts.as_slice() {
            ["projects", project, "regions", region, "subnetworks", name]
                if [project, region, name].iter().all(|part| plain(part)) =>
            {
                Ok(SubnetPath {
                    project: (*project).to_owned(),
                    region: (*region).to_owned(),
                    name: (*name).to_owned(),
                })
            }
            _ => Err(invalid()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_and_a_url_name_the_same_subnet() {
        let path = "projects/host/regions/us-central1/subnetworks/nodes";
        let url = format!("https://www.googleapis.com/compute/v1/{path}");
        let found: SubnetPath = url.parse().unwrap();
        assert_eq!(Ok(found.clone()), path.parse());
        assert_eq!(found.to_string(), path);
        for wrong in [
            "",
            "nodes",
            "projects/p/regions/r/subnetworks/",
            "projects/p/regions/r/subnetworks/a/b",
            "projects/p/zones/z/instances/i",
            "projects/p/regions/r/subnetworks/a?b",
        ] {
            assert!(wrong.parse::<SubnetPath>().is_err(), "{wrong}");
        }
    }
}
