//! One CNI call: the verb and the variables it needs, checked as the specification says.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::args::Args;
use crate::error::{CniError, Code};
use crate::ids::{ContainerId, IfName, shown};

/// The longest path on Linux.
const NETNS_MAX: usize = 4096;

/// `CNI_COMMAND`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verb {
    Add,
    Del,
    Check,
    Gc,
    Status,
    Version,
}

impl Verb {
    pub fn parse(text: &str) -> Result<Verb, CniError> {
        match text {
            "ADD" => Ok(Verb::Add),
            "DEL" => Ok(Verb::Del),
            "CHECK" => Ok(Verb::Check),
            "GC" => Ok(Verb::Gc),
            "STATUS" => Ok(Verb::Status),
            "VERSION" => Ok(Verb::Version),
            "" => Err(missing(&["CNI_COMMAND"])),
            other => Err(CniError::new(
                Code::Environment,
                format!(
                    "CNI_COMMAND {} is unknown: must be ADD, DEL, CHECK, GC, STATUS or VERSION",
                    shown(other)
                ),
            )),
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Verb::Add => "ADD",
            Verb::Del => "DEL",
            Verb::Check => "CHECK",
            Verb::Gc => "GC",
            Verb::Status => "STATUS",
            Verb::Version => "VERSION",
        }
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The CNI_* variables as received, unchecked. An unset variable and an empty one are the same.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Environment {
    pub command: String,
    pub container_id: String,
    pub netns: String,
    pub ifname: String,
    pub args: String,
    pub path: String,
}

/// What a call is about. Only verbs that concern one attachment carry it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Call {
    Add(Target),
    Del(Target),
    Check(Target),
    Gc,
    Status,
    Version,
}

/// One attachment: a container's interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    pub container_id: ContainerId,
    pub ifname: IfName,
    /// The namespace's path. Empty on a DEL after the namespace is gone.
    pub netns: String,
    pub args: Args,
}

impl Environment {
    /// Reads the process's own environment. A value that is not UTF-8 becomes one that no check accepts.
    pub fn from_process() -> Self {
        let read = |name: &str| {
            std::env::var_os(name)
                .map(|value| value.to_string_lossy().into_owned())
                .unwrap_or_default()
        };
        Environment {
            command: read("CNI_COMMAND"),
            container_id: read("CNI_CONTAINERID"),
            netns: read("CNI_NETNS"),
            ifname: read("CNI_IFNAME"),
            args: read("CNI_ARGS"),
            path: read("CNI_PATH"),
        }
    }

    /// Checks the variables that the verb needs; the error names all that are missing.
    pub fn call(&self) -> Result<Call, CniError> {
        let verb = Verb::parse(&self.command)?;
        let needed: &[(&'static str, &str)] = match verb {
            Verb::Add | Verb::Check => &[
                ("CNI_CONTAINERID", &self.container_id),
                ("CNI_NETNS", &self.netns),
                ("CNI_IFNAME", &self.ifname),
            ],
            Verb::Del => &[
                ("CNI_CONTAINERID", &self.container_id),
                ("CNI_IFNAME", &self.ifname),
            ],
            Verb::Gc => &[("CNI_PATH", &self.path)],
            Verb::Status | Verb::Version => &[],
        };
        let absent: Vec<&str> = needed
            .iter()
            .filter(|(_, value)| value.is_empty())
            .map(|(name, _)| *name)
            .collect();
        if !absent.is_empty() {
            return Err(missing(&absent));
        }
        Ok(match verb {
            Verb::Add => Call::Add(self.target()?),
            Verb::Del => Call::Del(self.target_of_del()?),
            Verb::Check => Call::Check(self.target()?),
            Verb::Gc => Call::Gc,
            Verb::Status => Call::Status,
            Verb::Version => Call::Version,
        })
    }

    /// Whether it is a DEL of a container or interface with an invalid name: nothing is stored under one.
    pub fn is_malformed_del(&self) -> bool {
        let named = !self.container_id.is_empty() && !self.ifname.is_empty();
        self.command == Verb::Del.as_str() && named && self.target_of_del().is_err()
    }

    fn target(&self) -> Result<Target, CniError> {
        if self.netns.len() > NETNS_MAX {
            let message = format!(
                "CNI_NETNS has {} bytes: a path has at most {NETNS_MAX}",
                self.netns.len()
            );
            return Err(CniError::new(Code::Environment, message));
        }
        Ok(Target {
            container_id: ContainerId::new(&self.container_id)?,
            ifname: IfName::new(&self.ifname)?,
            netns: self.netns.clone(),
            args: Args::parse(&self.args)?,
        })
    }

    /// A DEL releases what is stored under the id, regardless of the rest of the call.
    fn target_of_del(&self) -> Result<Target, CniError> {
        Ok(Target {
            container_id: ContainerId::for_del(&self.container_id)?,
            ifname: IfName::new(&self.ifname)?,
            netns: self.netns.clone(),
            args: Args::parse_for_del(&self.args),
        })
    }
}

impl Call {
    pub fn verb(&self) -> Verb {
        match self {
            Call::Add(_) => Verb::Add,
            Call::Del(_) => Verb::Del,
            Call::Check(_) => Verb::Check,
            Call::Gc => Verb::Gc,
            Call::Status => Verb::Status,
            Call::Version => Verb::Version,
        }
    }
}

fn missing(names: &[&str]) -> CniError {
    CniError::new(
        Code::Environment,
        format!("required env variables [{}] missing", names.join(",")),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(command: &str) -> Environment {
        Environment {
            command: command.into(),
            container_id: "c1".into(),
            netns: "/var/run/netns/x".into(),
            ifname: "net1".into(),
            args: "IgnoreUnknown=1;K8S_POD_NAME=p".into(),
            path: "/opt/cni/bin".into(),
        }
    }

    #[test]
    fn a_full_environment_serves_every_verb() {
        for verb in ["ADD", "DEL", "CHECK", "GC", "STATUS", "VERSION"] {
            let call = environment(verb).call().unwrap();
            assert_eq!(call.verb().as_str(), verb);
        }
    }

    #[test]
    fn all_missing_variables_are_named_at_once() {
        let bare = |command: &str| Environment {
            command: command.into(),
            ..Default::default()
        };
        let message = |command: &str| {
            let error = bare(command).call().unwrap_err();
            assert_eq!(error.code, Code::Environment);
            error.msg
        };
        assert!(message("ADD").contains("[CNI_CONTAINERID,CNI_NETNS,CNI_IFNAME]"));
        assert!(message("CHECK").contains("[CNI_CONTAINERID,CNI_NETNS,CNI_IFNAME]"));
        assert!(message("DEL").contains("[CNI_CONTAINERID,CNI_IFNAME]"));
        assert!(message("GC").contains("[CNI_PATH]"));
        assert!(message("").contains("[CNI_COMMAND]"));
        assert!(bare("STATUS").call().is_ok());
        assert!(bare("VERSION").call().is_ok());
    }

    #[test]
    fn del_needs_no_namespace() {
        let call = Environment {
            netns: String::new(),
            ..environment("DEL")
        }
        .call();
        assert!(matches!(call, Ok(Call::Del(_))));
    }

    #[test]
    fn an_unknown_verb_is_named() {
        let error = environment("UPDATE").call().unwrap_err();
        assert!(error.msg.contains("UPDATE"));
    }

    #[test]
    fn what_an_add_is_refused_for_does_not_stop_a_del() {
        let long = |command: &str| Environment {
            container_id: "c".repeat(1_000_000),
            args: "K8S_POD_NAME=Not A Name".into(),
            netns: "/".repeat(5000),
            ..environment(command)
        };
        for command in ["ADD", "CHECK"] {
            let error = long(command).call().unwrap_err();
            assert_eq!(error.code, Code::Environment);
        }
        assert!(matches!(long("DEL").call(), Ok(Call::Del(_))));
        for (netns, args) in [
            ("/".repeat(5000), ""),
            ("/x".into(), "K8S_POD_NAME=Not A Name"),
        ] {
            let one = Environment {
                netns,
                args: args.into(),
                ..environment("ADD")
            };
            assert_eq!(one.call().unwrap_err().code, Code::Environment);
        }
    }

    #[test]
    fn malformed_names_are_refused() {
        let bad_id = Environment {
            container_id: "../c".into(),
            ..environment("ADD")
        };
        assert_eq!(bad_id.call().unwrap_err().code, Code::Environment);
        let bad_ifname = Environment {
            ifname: "a/b".into(),
            ..environment("DEL")
        };
        assert_eq!(bad_ifname.call().unwrap_err().code, Code::Environment);
    }

    #[test]
    fn a_del_of_a_malformed_name_is_known_and_one_without_a_name_is_not() {
        let with = |command: &str, container_id: &str, ifname: &str| {
            let environment = Environment {
                container_id: container_id.into(),
                ifname: ifname.into(),
                ..environment(command)
            };
            environment.is_malformed_del()
        };
        assert!(with("DEL", "../c", "net1"));
        assert!(with("DEL", "c1", "a/b"));
        assert!(with("DEL", "c1", &"i".repeat(16)));
        assert!(!with("DEL", "c1", "net1"));
        assert!(!with("DEL", "", "net1"));
        assert!(!with("DEL", "../c", ""));
        assert!(!with("ADD", "../c", "net1"));
    }
}
