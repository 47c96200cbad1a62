//! The API server's own count of requests that change something.

use anyhow::Result;
use kube::Client;
use kube::api::ListParams;
use kube::core::Request;

const WRITES: [&str; 6] = [
    "POST",
    "PUT",
    "PATCH",
    "APPLY",
    "DELETE",
    "DELETECOLLECTION",
];

/// Writes of every kind since the server's start, including refused ones and those of other clients.
pub async fn writes(client: &Client) -> Result<f64> {
    let request = Request::new("/metrics").list(&ListParams::default())?;
    Ok(count(&client.request_text(request).await?))
}

/// The sum of `apiserver_request_total` over the verbs that write.
fn count(text: &str) -> f64 {
    let of_write = |line: &&str| {
        let verb = line.split("verb=\"").nth(1);
        verb.is_some_and(|rest| {
            WRITES
                .iter()
                .any(|verb| rest.starts_with(&format!("{verb}\"")))
        })
    };
    text.lines()
        .filter(|line| line.starts_with("apiserver_request_total{"))
        .filter(of_write)
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_writes_is_counted() {
        let text = r#"# TYPE apiserver_request_total counter
apiserver_request_total{code="200",dry_run="",verb="GET"} 7
apiserver_request_total{code="201",dry_run="",resource="ippools",verb="POST",version="v1alpha1"} 1.5e+01
apiserver_request_total{code="409",resource="leases",verb="POST"} 2
apiserver_request_total{code="200",verb="PATCH"} 1
apiserver_request_duration_seconds_count{verb="POST"} 99
"#;
        assert!((count(text) - 18.0).abs() < 1e-9);
    }
}
