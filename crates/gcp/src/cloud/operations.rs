//! Calls with a token, and operations that are waited for.

use std::time::Duration;

use hyper::Method;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use tokio::time::Instant;

use super::Cloud;
use super::error::CloudError;
use super::http::{Outgoing, parse};

/// What needs no escape in a path segment or a query value.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~');

pub(super) fn escaped(text: &str) -> String {
    utf8_percent_encode(text, ESCAPED).to_string()
}

/// A plain call is answered at once; `wait` may take two minutes.
const CALL: Duration = Duration::from_secs(30);
const WAIT: Duration = Duration::from_secs(150);
/// A wait that came back at once is not repeated faster than this.
const BETWEEN_WAITS: Duration = Duration::from_millis(500);

/// Where an operation is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperationScope {
    Zone(String),
    Region(String),
}

/// An operation under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    pub scope: OperationScope,
    pub name: String,
    /// It had ended when the request was answered: an earlier request with this id began it.
    pub ended: bool,
}

impl Cloud {
    /// One authenticated exchange; a refused token is renewed once.
    pub(super) async fn call(
        &self,
        method: Method,
        url: &str,
        body: Option<&Value>,
        timeout: Duration,
    ) -> Result<Value, CloudError> {
        for last in [false, true] {
            let token = self.tokens.get().await?;
            let outgoing = Outgoing {
                method: method.clone(),
                url,
                bearer: Some(&token),
                headers: &[],
                body: body.map(|body| ("application/json", body.to_string().into_bytes())),
                timeout,
            };
            let ended = self.http.exchange(outgoing).await;
            self.metrics.requested(&method, url, &ended);
            match ended {
                Ok((_, bytes)) => return parse(&bytes),
                Err(CloudError::Unauthenticated(text)) => {
                    self.tokens.refused(&token).await;
                    if last {
                        return Err(CloudError::Unauthenticated(text));
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Err(CloudError::Unauthenticated(
            "no token was accepted".to_owned(),
        ))
    }

    pub(super) async fn read(&self, path: &str) -> Result<Value, CloudError> {
        self.call(Method::GET, &self.endpoints.compute(path), None, CALL)
            .await
    }

    pub(super) async fn change(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        scope: OperationScope,
    ) -> Result<Operation, CloudError> {
        let answer = self
            .call(method, &self.endpoints.compute(path), body, CALL)
            .await?;
        let name = answer["name"].as_str().filter(|name| !name.is_empty());
        let name = name
            .ok_or_else(|| CloudError::Unavailable("the answer names no operation".to_owned()))?;
        Ok(Operation {
            scope,
            name: name.to_owned(),
            ended: answer["status"] == "DONE",
        })
    }

    pub(super) async fn connectivity(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, CloudError> {
        let url = self.endpoints.network_connectivity(path);
        self.call(method, &url, body, CALL).await
    }

    /// Waits until the operation has ended.
    pub async fn wait(&self, operation: &Operation) -> Result<(), CloudError> {
        let place = match &operation.scope {
            OperationScope::Zone(zone) => format!("zones/{}", escaped(zone)),
            OperationScope::Region(region) => format!("regions/{}", escaped(region)),
        };
        let path = format!(
            "projects/{}/{place}/operations/{}/wait",
            escaped(&self.project),
            escaped(&operation.name)
        );
        let url = self.endpoints.compute(&path);
        let asked = Instant::now();
        let deadline = asked + self.operation_timeout;
        loop {
            let begun = Instant::now();
            let left = deadline.saturating_duration_since(begun);
            if left.is_zero() {
                return Err(CloudError::OperationTimeout(operation.name.clone()));
            }
            match self.call(Method::POST, &url, None, WAIT.min(left)).await {
                Ok(answer) if answer["status"] == "DONE" => {
                    self.metrics.operated(asked.elapsed());
                    return outcome(&answer);
                }
                Ok(_) => {}
                // The operation runs on: the next wait finds it.
                Err(CloudError::Unavailable(_) | CloudError::RateLimited { .. }) => {}
                Err(error) => return Err(error),
            }
            tokio::time::sleep_until(deadline.min(begun + BETWEEN_WAITS)).await;
        }
    }
}

fn outcome(answer: &Value) -> Result<(), CloudError> {
    let Some(error) = answer["error"]["errors"].get(0) else {
        return Ok(());
    };
    let text = |field: &str| error[field].as_str().unwrap_or_default();
    Err(CloudError::of_operation(text("code"), text("message")))
}
