//! The metadata server of one VM.

use serde_json::json;

use crate::instances::Instance;

/// The answer to a path below `/computeMetadata/v1/`; None where there is nothing.
pub(crate) fn answer(
    instance: &Instance,
    project: (&str, u64),
    token: &str,
    path: &str,
) -> Option<String> {
    let (name, number) = project;
    let text = match path.trim_start_matches("/computeMetadata/v1/") {
        "instance/service-accounts/default/token" => {
            json!({ "access_token": token, "expires_in": 3599, "token_type": "Bearer" }).to_string()
        }
        "instance/name" => instance.name.clone(),
        "instance/id" => instance.id.to_string(),
        "instance/zone" => format!("projects/{number}/zones/{}", instance.zone),
        "instance/attributes/cluster-location" => instance.region.clone(),
        "instance/attributes/cluster-name" => "berth".to_owned(),
        "project/project-id" => name.to_owned(),
        "project/numeric-project-id" => number.to_string(),
        _ => return None,
    };
    Some(text)
}
