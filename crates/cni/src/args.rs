//! `CNI_ARGS`: `KEY=value` pairs between semicolons.

use crate::error::{CniError, Code};
use crate::ids::{is_dns_label, is_dns_subdomain, shown};

/// The maximum length of `CNI_ARGS`. A Kubernetes runtime sends about 300 bytes.
const LONGEST: usize = 4096;
/// The maximum length of a pod UID: a UUID has 36 characters, a static pod's hash 32.
const UID_LONGEST: usize = 128;

/// The pairs that Berth knows. Empty if the runtime sent none.
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
    /// Parses `CNI_ARGS`. An unknown key is refused unless `IgnoreUnknown` is set, by convention; every Kubernetes
    /// runtime sets it.
    pub fn parse(text: &str) -> Result<Args, CniError> {
        if text.len() > LONGEST {
            return Err(CniError::new(
                Code::Environment,
                format!(
                    "CNI_ARGS has {} bytes: at most {LONGEST} are taken",
                    text.len()
                ),
            ));
        }
        let mut args = Args::default();
        let mut ignore_unknown = false;
        let mut unknown = Vec::new();
        for pair in text.split(';').filter(|pair| !pair.is_empty()) {
            let Some((key, value)) = pair.split_once('=') else {
                return Err(CniError::new(
                    Code::Environment,
                    format!("CNI_ARGS: {} is not of the form KEY=value", shown(pair)),
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
                format!(
                    "CNI_ARGS: unknown keys {}",
                    unknown.join(", ").escape_debug()
                ),
            )
            .details("add IgnoreUnknown=1 to have them ignored"));
        }
        args.check()?;
        Ok(args)
    }

    /// Parses what can be parsed: a DEL is not refused for something that only an ADD needs.
    pub fn parse_for_del(text: &str) -> Args {
        if let Ok(args) = Args::parse(text) {
            return args;
        }
        let mut args = Args::default();
        let text = match text.get(..text.floor_char_boundary(LONGEST)) {
            // The last item may be truncated.
            Some(start) if start.len() < text.len() => start
                .get(..start.rfind([';', ',']).unwrap_or(0))
                .unwrap_or_default(),
            _ => text,
        };
        for (key, value) in text.split(';').filter_map(|pair| pair.split_once('=')) {
            match key {
                "IP" => args.ip = list(value),
                "GATEWAY" => args.gateway = list(value),
                _ => {}
            }
        }
        args
    }

    /// The names are stored, logged and used in URLs: they must be valid Kubernetes names.
    fn check(&self) -> Result<(), CniError> {
        let refuse = |key: &str, value: &str, right: &str| {
            let message = format!("CNI_ARGS: {key}={} is malformed: {right}", shown(value));
            Err(CniError::new(Code::Environment, message))
        };
        if !self.pod_name.is_empty() && !is_dns_subdomain(&self.pod_name) {
            let right = "a pod's name is a DNS-1123 subdomain of at most 253 characters";
            return refuse("K8S_POD_NAME", &self.pod_name, right);
        }
        if !self.pod_namespace.is_empty() && !is_dns_label(&self.pod_namespace) {
            let right = "a namespace is a DNS-1123 label of at most 63 characters";
            return refuse("K8S_POD_NAMESPACE", &self.pod_namespace, right);
        }
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        if self.pod_uid.len() > UID_LONGEST || !self.pod_uid.bytes().all(plain) {
            let right = "at most 128 letters, digits, '-', '_', '.'";
            return refuse("K8S_POD_UID", &self.pod_uid, right);
        }
        Ok(())
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

    #[test]
    fn names_are_those_of_kubernetes_and_the_whole_is_bounded() {
        let long = "a".repeat(254);
        for bad in [
            "K8S_POD_NAME=Web".to_owned(),
            "K8S_POD_NAME=a/b".to_owned(),
            "K8S_POD_NAME=a\nb".to_owned(),
            "K8S_POD_NAME=-a".to_owned(),
            "K8S_POD_NAME=a..b".to_owned(),
            format!("K8S_POD_NAME={long}"),
            "K8S_POD_NAMESPACE=a.b".to_owned(),
            format!("K8S_POD_NAMESPACE={}", &long[..64]),
            format!("K8S_POD_UID={long}"),
            format!("IgnoreUnknown=1;X={}", "x".repeat(5000)),
        ] {
            let refused = Args::parse(&bad).unwrap_err();
            assert_eq!(refused.code, Code::Environment, "{bad}");
            assert!(refused.msg.len() < 300, "{}", refused.msg);
        }
        let longest = format!(
            "K8S_POD_NAME={};K8S_POD_NAMESPACE={}",
            "a".repeat(253),
            &long[..63]
        );
        assert!(Args::parse(&longest).is_ok());
    }

    #[test]
    fn a_del_gets_what_can_be_read() {
        let args = Args::parse_for_del("K8S_POD_NAME=Bad Name;novalue;IP=10.0.0.5/24");
        assert_eq!(args.ip, ["10.0.0.5/24"]);
        assert_eq!(args.pod_name, "");
        assert_eq!(Args::parse_for_del(&"é".repeat(4000)), Args::default());
        // A truncated text leaves no half of an address, wherever a character ends.
        for before in ["IP=", "xé;IP="] {
            let long = format!("{before}{}", "10.0.0.57/24,é,".repeat(400));
            let args = Args::parse_for_del(&long);
            assert!(args.ip.len() > 400, "{}", args.ip.len());
            for item in &args.ip {
                assert!(["10.0.0.57/24", "é"].contains(&item.as_str()), "{item}");
            }
        }
    }

    proptest! {
        #[test]
        fn never_panics(text in ".*") {
            let _ = Args::parse_for_del(&text);
            let _ = Args::parse(&text);
        }
    }
}
