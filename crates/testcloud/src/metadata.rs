//! The metadata server of one VM.

use serde_json::json;

use crate::instances::Instance;
use crate::project::Project;

/// The answer to a path below `/computeMetadata/v1/`; None where there is nothing.
pub(crate) fn answer(
    instance: &Instance,
    project: &Project,
    token: &str,
    path: &str,
) -> Option<String> {
    let (name, number, of_gke) = (&project.name, project.number, project.gke_metadata);
    let text = match path.trim_start_matches("/computeMetadata/v1/") {
        "instance/service-accounts/default/token" => {
            json!({ "access_token": token, "expires_in": 3599, "token_type": "Bearer" }).to_string()
        }
        "instance/name" if !of_gke => instance.name.clone(),
        "instance/hostname" => format!("{}.{}.c.{name}.internal", instance.name, instance.zone),
        "instance/id" => instance.id.to_string(),
        "instance/zone" => format!("projects/{number}/zones/{}", instance.zone),
        "instance/attributes/cluster-location" => instance.region.clone(),
        "instance/attributes/cluster-name" => "berth".to_owned(),
        "project/project-id" => name.clone(),
        "project/numeric-project-id" => number.to_string(),
        _ => return None,
    };
    Some(text)
}
