//! What the agent counts.

use std::time::Duration;

use berth_cni::wire::Answer;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct Outcome {
    verb: &'static str,
    /// The CNI error code; 0 is success.
    code: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct Verb {
    verb: &'static str,
}

/// The agent's own figures.
#[derive(Debug, Clone)]
pub(crate) struct Metrics {
    calls: Family<Outcome, Counter>,
    seconds: Family<Verb, Histogram>,
    pub(crate) under_way: Gauge,
}

impl Metrics {
    pub(crate) fn register(registry: &mut Registry) -> Metrics {
        let metrics = Metrics {
            calls: Family::default(),
            // From half a millisecond, what a call from a local pool takes, to the runtime's time limit.
            seconds: Family::new_with_constructor(|| {
                Histogram::new([
                    0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
                    10.0, 30.0, 60.0, 120.0,
                ])
            }),
            under_way: Gauge::default(),
        };
        let registry = registry.sub_registry_with_prefix("berth_agent");
        registry.register(
            "cni_calls",
            "CNI calls by verb and error code (0: success)",
            metrics.calls.clone(),
        );
        registry.register_with_unit(
            "cni_call_duration",
            "Time from a CNI call's arrival to its answer",
            Unit::Seconds,
            metrics.seconds.clone(),
        );
        registry.register(
            "cni_calls_under_way",
            "CNI calls being served",
            metrics.under_way.clone(),
        );
        metrics
    }

    pub(crate) fn record(&self, command: &str, answer: &Answer, took: Duration) {
        let verb = verb(command);
        let outcome = Outcome {
            verb,
            code: code(answer),
        };
        self.calls.get_or_create(&outcome).inc();
        self.seconds
            .get_or_create(&Verb { verb })
            .observe(took.as_secs_f64());
    }
}

/// Known verbs only: a label must not grow with what strangers send.
fn verb(command: &str) -> &'static str {
    match command {
        "ADD" => "ADD",
        "DEL" => "DEL",
        "CHECK" => "CHECK",
        "GC" => "GC",
        "STATUS" => "STATUS",
        "VERSION" => "VERSION",
        _ => "other",
    }
}

fn code(answer: &Answer) -> u32 {
    if answer.exit == 0 {
        return 0;
    }
    let body: Option<serde_json::Value> = serde_json::from_str(&answer.stdout).ok();
    let code = body
        .as_ref()
        .and_then(|body| body.get("code"))
        .and_then(serde_json::Value::as_u64);
    code.and_then(|code| u32::try_from(code).ok())
        .unwrap_or(999)
}
