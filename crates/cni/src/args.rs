//! `CNI_ARGS`: `KEY=value` pairs between semicolons.

use crate::error::{CniError, Code};

/// The pairs Berth knows. Empty where the runtime said nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Args {
    pub pod_name: String,
    pub pod_namespace: String,
    pub pod_uid: String,
    pub infra_container_id: String,
    /// `IP=`: addresses in CIDR form, between commas.
    pub ip: Vec<String>,
    /// `GATEWAY=`: addresses, between commas.
    pub gateway: Vec<String>,
}

impl Args {
    /// Reads `CNI_ARGS`. A key nobody knows is refused unless `IgnoreUnknown` is set, as the convention
    /// has it: every Kubernetes runtime sets it.
    pub fn parse(text: &str) -> Result<Args, CniError> {
        let mut args = Args::default();
        let mut ignore_unknown = false;
        let mut unknown = Vec::new();
        for pair in text.split(';').filter(|pair| !pair.is_empty()) {
            let Some((key, value)) = pair.split_once('=') else {
                return Err(CniError::new(
                    Code::Environment,
                    format!("CNI_ARGS: {pair:?} is not of the form KEY=value"),
                ));
            };
            match key {
                "K8S_POD_NAME" => args.pod_name = value.to_owned(),
                "K8S_POD_NAMESPACE" => args.pod_namespace = value.to_owned(),
                "K8S_POD_UID" => args.pod_uid = value.to_owned(),
                "K8S_POD_INFRA_CONTAINER_ID" => args.infra_container_id = value.to_owned(),
                "IP" => args.ip = list(value),
                "GATEWAY" => args.gateway = list(value),
                "IgnoreUnknown" => ignore_unknown = boolean(value)?,
                _ => unknown.push(key),
            }
        }
        if !ignore_unknown && !unknown.is_empty() {
            return Err(CniError::new(
                Code::Environment,
                format!("CNI_ARGS: unknown keys {}", unknown.join(", ")),
            )
            .details("add IgnoreUnknown=1 to have them ignored"));
        }
        Ok(args)
    }
}

fn list(value: &str) -> Vec<String> {
    value
        .split(',')
        .map(str::trim)
        .filter(|item| !item.is_empty())
        .map(str::to_owned)
        .collect()
}

fn boolean(value: &str) -> Result<bool, CniError> {
    match value.to_ascii_lowercase().as_str() {
        "1" | "true" => Ok(true),
        "0" | "false" => Ok(false),
        _ => Err(CniError::new(
            Code::Environment,
            format!("CNI_ARGS: IgnoreUnknown={value:?}: must be 1, true, 0 or false"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_a_kubernetes_runtime_sends() {
        let args = Args::parse(
            "K8S_POD_INFRA_CONTAINER_ID=4f2c;K8S_POD_UID=1-2;IgnoreUnknown=1;\
             K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0",
        )
        .unwrap();
        assert_eq!(args.pod_name, "web-0");
        assert_eq!(args.pod_namespace, "default");
        assert_eq!(args.pod_uid, "1-2");
        assert_eq!(args.infra_container_id, "4f2c");
    }

    #[test]
    fn lists_are_split_at_commas() {
        let args = Args::parse("IP=10.0.0.5/24, fd00::5/64;GATEWAY=10.0.0.1,fd00::1").unwrap();
        assert_eq!(args.ip, ["10.0.0.5/24", "fd00::5/64"]);
        assert_eq!(args.gateway, ["10.0.0.1", "fd00::1"]);
    }

    #[test]
    fn nothing_is_nothing() {
        assert_eq!(Args::parse("").unwrap(), Args::default());
    }

    #[test]
    fn an_unknown_key_needs_ignore_unknown_wherever_it_stands() {
        let refused = Args::parse("A=1;K8S_POD_NAME=p;B=2").unwrap_err();
        assert_eq!(refused.code, Code::Environment);
        assert!(refused.msg.contains("A, B"));
        assert!(Args::parse("A=1;IgnoreUnknown=true").is_ok());
        assert!(Args::parse("IgnoreUnknown=1;A=1").is_ok());
        assert!(Args::parse("IgnoreUnknown=0;A=1").is_err());
    }

    #[test]
    fn a_pair_without_a_value_is_refused() {
        assert!(Args::parse("K8S_POD_NAME").is_err());
        assert!(Args::parse("IgnoreUnknown=yes").is_err());
    }

    proptest! {
        #[test]
        fn never_panics(text in ".*") {
            let _ = Args::parse(&text);
        }
    }
}
