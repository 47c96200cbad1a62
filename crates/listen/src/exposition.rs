//! `/metrics`: classic Prometheus text, or OpenMetrics for a client that prefers it.

use std::fmt::Write;

use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

const CLASSIC: &str = "text/plain; version=0.0.4; charset=utf-8";
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Registers `berth_build_info`.
pub fn register_build_info(registry: &mut Registry) {
    let version = env!("CARGO_PKG_VERSION");
    registry.register(
        "berth_build",
        "The version of this program",
        Info::new([("version", version)]),
    );
}

/// The answer to `GET /metrics`.
pub fn respond(registry: &Registry, headers: &HeaderMap) -> Response {
    let mut text = String::new();
    if prometheus_client::encoding::text::encode(&mut text, registry).is_err() {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    }
    if prefers_open_metrics(headers) {
        return ([(header::CONTENT_TYPE, OPEN_METRICS)], text).into_response();
    }
    ([(header::CONTENT_TYPE, CLASSIC)], classic(&text)).into_response()
}

/// Whether the client asks for OpenMetrics by name, and does not prefer plain text.
fn prefers_open_metrics(headers: &HeaderMap) -> bool {
    let (mut open, mut plain) = (0.0_f32, 0.0_f32);
    let accepted = headers.get_all(header::ACCEPT).into_iter();
    for value in accepted.filter_map(|value| value.to_str().ok()) {
        for range in value.split(',') {
            let mut parts = range.split(';').map(str::trim);
            let kind = parts.next().unwrap_or_default();
            let weight = parts.find_map(|part| part.strip_prefix("q="));
            let weight = weight.map_or(1.0, |weight| weight.parse().unwrap_or(0.0));
            match kind.to_ascii_lowercase().as_str() {
                "application/openmetrics-text" => open = open.max(weight),
                "text/plain" => plain = plain.max(weight),
                _ => {}
            }
        }
    }
    open > 0.0 && open >= plain
}

/// Rewrites OpenMetrics text as classic text: a counter's name ends with `_total` in its descriptor too, there is no
/// type `info`, and neither units nor an end marker.
fn classic(open: &str) -> String {
    let mut text = String::with_capacity(open.len());
    let mut help = None;
    for line in open.lines() {
        if let Some(described) = line.strip_prefix("# HELP ") {
            help = described.split_once(' ');
        } else if let Some(described) = line.strip_prefix("# TYPE ") {
            let (name, kind) = described.split_once(' ').unwrap_or((described, "unknown"));
            let (suffix, kind) = match kind {
                "counter" => ("_total", "counter"),
                "info" => ("_info", "gauge"),
                "stateset" => ("", "gauge"),
                "gaugehistogram" => ("", "histogram"),
                "unknown" => ("", "untyped"),
                same => ("", same),
            };
            // Writing to a string never fails.
            if let Some((_, help)) = help.take_if(|(described, _)| *described == name) {
                let _ = writeln!(text, "# HELP {name}{suffix} {help}");
            }
            let _ = writeln!(text, "# TYPE {name}{suffix} {kind}");
        } else if !line.starts_with("# UNIT ") && line != "# EOF" {
            let _ = writeln!(text, "{line}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;
    use prometheus_client::metrics::counter::Counter;
    use prometheus_client::metrics::gauge::Gauge;
    use prometheus_client::metrics::histogram::Histogram;
    use prometheus_client::registry::Unit;

    use super::*;

    #[test]
    fn classic_text_names_counters_and_infos_as_its_readers_expect() {
        let mut registry = Registry::default();
        register_build_info(&mut registry);
        registry.register("calls", "Calls", Counter::<u64>::default());
        registry.register("open", "Open ones", Gauge::<i64>::default());
        let times = Histogram::new([0.1]);
        registry.register_with_unit("took", "Times", Unit::Seconds, times);
        let mut open = String::new();
        prometheus_client::encoding::text::encode(&mut open, &registry).unwrap();
        let version = env!("CARGO_PKG_VERSION");
        let expected = format!(
            "# HELP berth_build_info The version of this program.
# TYPE berth_build_info gauge
berth_build_info{{version=\"{version}\"}} 1
# HELP calls_total Calls.
# TYPE calls_total counter
calls_total 0
# HELP open Open ones.
# TYPE open gauge
open 0
# HELP took_seconds Times.
# TYPE took_seconds histogram
took_seconds_sum 0.0
took_seconds_count 0
took_seconds_bucket{{le=\"0.1\"}} 0
took_seconds_bucket{{le=\"+Inf\"}} 0
"
        );
        assert_eq!(classic(&open), expected);
    }

    #[test]
    fn open_metrics_is_for_those_who_ask_for_it() {
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.4,*/*;q=0.1";
        for (accept, open) in [
            ("", false),
            ("*/*", false),
            ("text/plain", false),
            ("application/openmetrics-text", true),
            (prometheus, true),
            ("application/openmetrics-text;q=0.3,text/plain;q=0.5", false),
            ("application/openmetrics-text;q=0", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT, HeaderValue::from_static(accept));
            assert_eq!(prefers_open_metrics(&headers), open, "{accept}");
        }
    }
}
