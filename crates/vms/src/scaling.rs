//! Reports pools that run low or have too many free VMs: an event on the ConfigMap, a log line, and a call of a URL.
//!
//! Guarantees: one report per pool and cooldown, over all agents of the pool (the time of the last one is an
//! annotation of its ConfigMap, written before the call); a URL that does not answer changes nothing except a log
//! line. Does not add or remove VMs.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::http::{HeaderValue, Method, Request, header};
use berth_kube::events::Tone;
use berth_ledger::{LedgerError, PoolKey, chain};
use http_body_util::Full;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use serde::{Deserialize, Serialize};

use crate::pool::{Status, Store};
use crate::settings::{Hook, Scaling};

/// When a pool was last reported.
const REPORTED: &str = "vms.berth.dev/scale-reported-at";

/// What is reported about a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Signal {
    /// More VMs.
    Low,
    /// Fewer VMs would do.
    High,
}

impl Signal {
    const fn reason(self) -> &'static str {
        match self {
            Self::Low => "PoolLow",
            Self::High => "PoolHigh",
        }
    }
}

/// The body of a call; docs/vms-scale-hook.schema.json describes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    pub version: u32,
    pub pool: String,
    pub signal: Signal,
    /// The node whose agent calls.
    pub node: String,
    pub at: String,
    pub total: usize,
    pub available: usize,
    /// Of the available VMs, those that are passed over, for example because they do not answer: they do not count as
    /// free.
    pub passed_over: usize,
    pub in_use: usize,
    pub quarantined: usize,
    /// The water marks as numbers of free VMs; null where there is none.
    pub low_water: Option<f64>,
    pub high_water: Option<f64>,
}

/// The report that a pool's numbers require, if any.
fn report(scaling: &Scaling, status: &Status, node: &str, now: Timestamp) -> Option<Report> {
    let faulty = [
        &status.silent,
        &status.untrusted,
        &status.locked,
        &status.occupied,
    ];
    let passed_over = faulty.iter().map(|ips| ips.len()).sum::<usize>();
    let free = status.available.saturating_sub(passed_over) as f64;
    let mark = |level: Option<crate::settings::Level>| level.map(|level| level.of(status.total));
    let (low, high) = (mark(scaling.low), mark(scaling.high));
    let signal = if low.is_some_and(|low| free < low) {
        Signal::Low
    } else if high.is_some_and(|high| free > high) {
        Signal::High
    } else {
        return None;
    };
    Some(Report {
        version: 1,
        pool: status.pool.clone(),
        signal,
        node: node.to_owned(),
        at: seconds(now),
        total: status.total,
        available: status.available,
        passed_over,
        in_use: status.in_use,
        quarantined: status.quarantined,
        low_water: low,
        high_water: high,
    })
}

fn seconds(now: Timestamp) -> String {
    now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Whether the last report is old enough. A time that can't be parsed, or lies far in the future, is ignored.
fn is_due(last: Option<&str>, now: Timestamp, cooldown: Duration) -> bool {
    let Some(last) = last.and_then(|last| last.parse::<Timestamp>().ok()) else {
        return true;
    };
    let cooldown = SignedDuration::try_from(cooldown).unwrap_or(SignedDuration::MAX);
    let passed = now.duration_since(last);
    passed >= cooldown || passed < -cooldown
}

/// Reports pools to an operator or program that can add or remove VMs.
#[derive(Debug)]
pub(crate) struct Scaler {
    scaling: Scaling,
    /// When pools in a file were reported: no other agent has them.
    local: Mutex<BTreeMap<String, String>>,
}

impl Scaler {
    pub(crate) fn new(scaling: Scaling) -> Self {
        Self {
            scaling,
            local: Mutex::default(),
        }
    }

    /// Reports the pool if its numbers require it and no agent reported it within the cooldown.
    pub(crate) async fn report_if_due(
        &self,
        store: &Store,
        key: &PoolKey,
        status: &Status,
        node: &str,
    ) {
        let now = Timestamp::now();
        let Some(report) = report(&self.scaling, status, node, now) else {
            return;
        };
        match self.reserve(store, key, now).await {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => {
                let (pool, error) = (&report.pool, chain(&error));
                tracing::warn!(pool, error, "the pool's size could not be reported");
                return;
            }
        }
        let text = message(&report);
        tracing::info!(
            pool = report.pool,
            reason = report.signal.reason(),
            "{text}"
        );
        let (hook, store, key) = (self.scaling.hook.clone(), store.clone(), key.clone());
        // Neither a slow API server nor a URL that hangs delays the pools.
        tokio::spawn(async move {
            record_event(&store, &key, &report, &text).await;
            if let Some(hook) = hook
                && let Err(why) = call(&hook, &report).await
            {
                let (pool, url) = (&report.pool, &hook.url);
                tracing::warn!(
                    pool,
                    url,
                    why,
                    "the scale hook failed; the next call is after the cooldown"
                );
            }
        });
    }

    /// Whether this agent is the one to report the pool now. Recorded before the call is made (I9).
    async fn reserve(
        &self,
        store: &Store,
        key: &PoolKey,
        now: Timestamp,
    ) -> Result<bool, LedgerError> {
        let cooldown = self.scaling.cooldown;
        let decide = |last: Option<&str>| is_due(last, now, cooldown).then(|| seconds(now));
        match store {
            Store::ConfigMap(ledger) => ledger.annotate(key, REPORTED, decide).await,
            Store::Local(_) => {
                let mut local = self.local.lock();
                let next = decide(local.get(&key.name).map(String::as_str));
                let is_ours = next.is_some();
                local.extend(next.map(|at| (key.name.clone(), at)));
                Ok(is_ours)
            }
        }
    }
}

fn message(report: &Report) -> String {
    let free = report.available.saturating_sub(report.passed_over);
    let (what, mark) = match report.signal {
        Signal::Low => ("low-water mark", report.low_water),
        Signal::High => ("high-water mark", report.high_water),
    };
    let advice = match report.signal {
        Signal::Low => "add VMs",
        Signal::High => "fewer VMs would do",
    };
    format!(
        "pool {} has {free} of {} VMs free, {what} {}: {advice}",
        report.pool,
        report.total,
        mark.unwrap_or_default()
    )
}

/// An event on the pool's ConfigMap.
async fn record_event(store: &Store, key: &PoolKey, report: &Report, text: &str) {
    let Store::ConfigMap(ledger) = store else {
        return;
    };
    let tone = match report.signal {
        Signal::Low => Tone::Warning,
        Signal::High => Tone::Normal,
    };
    if let Ok(about) = ledger.reference(key).await {
        let events = ledger.events("berth-vms", &report.node);
        events.tell(about, tone, report.signal.reason(), text).await;
    }
}

/// Plain HTTP needs no certificates, and the released image has none: HTTPS needs `vm-scale-hook-ca-file` there.
async fn connector(hook: &Hook) -> Result<HttpsConnector<HttpConnector>, String> {
    let builder = HttpsConnectorBuilder::new();
    let provider = rustls::crypto::ring::default_provider();
    let builder = match &hook.ca_file {
        _ if hook.url.starts_with("http://") => {
            builder.with_tls_config(tls(provider, RootCertStore::empty())?)
        }
        Some(file) => builder.with_tls_config(tls(provider, roots(file).await?)?),
        None => builder
            .with_provider_and_native_roots(provider)
            .map_err(|error| {
                format!("no trusted certificates ({error}): set vm-scale-hook-ca-file")
            })?,
    };
    Ok(builder.https_or_http().enable_http1().build())
}

fn tls(provider: CryptoProvider, roots: RootCertStore) -> Result<ClientConfig, String> {
    let builder = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

/// The certificates of a PEM file, in its current form.
async fn roots(file: &Path) -> Result<RootCertStore, String> {
    let failed = |why: String| format!("vm-scale-hook-ca-file {}: {why}", file.display());
    let pem = tokio::fs::read(file)
        .await
        .map_err(|error| failed(error.to_string()))?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|error| failed(error.to_string()))?;
        roots
            .add(certificate)
            .map_err(|error| failed(error.to_string()))?;
    }
    match roots.is_empty() {
        true => Err(failed("it holds no certificate".into())),
        false => Ok(roots),
    }
}

/// One POST, with the token that is in the file now.
async fn call(hook: &Hook, report: &Report) -> Result<(), String> {
    let body = serde_json::to_vec(report).map_err(|error| error.to_string())?;
    let mut request = Request::builder()
        .method(Method::POST)
        .uri(&hook.url)
        .header(header::CONTENT_TYPE, "application/json")
        .header(
            header::USER_AGENT,
            concat!("berth/", env!("CARGO_PKG_VERSION")),
        )
        .body(Full::new(Bytes::from(body)))
        .map_err(|error| error.to_string())?;
    if let Some(file) = &hook.token_file {
        let token = tokio::fs::read_to_string(file)
            .await
            .map_err(|error| format!("vm-scale-hook-token-file {}: {error}", file.display()))?;
        let mut value = HeaderValue::from_str(&format!("Bearer {}", token.trim()))
            .map_err(|_| "vm-scale-hook-token-file holds no token".to_owned())?;
        value.set_sensitive(true);
        request.headers_mut().insert(header::AUTHORIZATION, value);
    }
    let request = Client::builder(TokioExecutor::new())
        .build(connector(hook).await?)
        .request(request);
    match tokio::time::timeout(hook.timeout, request).await {
        Err(_) => Err(format!("no answer within {:?}", hook.timeout)),
        Ok(Err(error)) => Err(chain(&error)),
        Ok(Ok(answer)) if answer.status().is_success() => Ok(()),
        Ok(Ok(answer)) => Err(format!("it answered {}", answer.status())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Level;
    use serde_json::Value;

    fn status(total: usize, available: usize, silent: usize) -> Status {
        Status {
            pool: "default".into(),
            total,
            available,
            in_use: total - available,
            silent: vec!["10.0.0.1".parse().unwrap(); silent],
            ..Status::default()
        }
    }

    fn scaling() -> Scaling {
        Scaling {
            low: Some(Level::Percent(20.0)),
            high: Some(Level::Count(8)),
            hook: None,
            cooldown: Duration::from_secs(300),
        }
    }

    #[test]
    fn pools_are_reported_below_the_low_and_above_the_high_mark() {
        let now = Timestamp::now();
        let signal = |available, silent| {
            let found = report(&scaling(), &status(10, available, silent), "worker", now);
            found.map(|report| report.signal)
        };
        assert_eq!(signal(1, 0), Some(Signal::Low));
        assert_eq!(signal(2, 0), None);
        assert_eq!(signal(4, 3), Some(Signal::Low), "silent ones are not free");
        assert_eq!(signal(8, 0), None);
        assert_eq!(signal(9, 0), Some(Signal::High));
    }

    #[test]
    fn a_report_is_due_after_the_cooldown_and_after_a_time_that_is_none() {
        let now: Timestamp = "2026-11-17T12:00:00Z".parse().unwrap();
        let due = |last| is_due(last, now, Duration::from_secs(300));
        assert!(due(None) && due(Some("yesterday")));
        assert!(!due(Some("2026-11-17T11:55:01Z")));
        assert!(due(Some("2026-11-17T11:55:00Z")));
        assert!(!due(Some("2026-11-17T12:01:00Z")), "another node's clock");
        assert!(due(Some("2027-01-01T00:00:00Z")), "a clock that was wrong");
    }

    #[test]
    fn the_schema_describes_the_body() {
        let schema: Value =
            serde_json::from_str(include_str!("../../../docs/vms-scale-hook.schema.json")).unwrap();
        let body = report(&scaling(), &status(10, 1, 0), "worker", Timestamp::now());
        let body = serde_json::to_value(body.unwrap()).unwrap();
        let fields: Vec<&String> = body.as_object().unwrap().keys().collect();
        let described: Vec<&String> = schema["properties"].as_object().unwrap().keys().collect();
        assert_eq!(fields, described);
        let required: Vec<&str> = schema["required"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(Value::as_str)
            .collect();
        assert_eq!(fields, required);
        let signals = schema["properties"]["signal"]["enum"].as_array().unwrap();
        assert!(signals.contains(&body["signal"]));
    }
}
