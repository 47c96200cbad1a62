//! Which API method a request is.

use crate::requests::Group;

/// An API method with what its path names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    GetInstance {
        zone: String,
        name: String,
    },
    AggregatedInstances,
    UpdateNic {
        zone: String,
        name: String,
    },
    GetZoneOperation {
        zone: String,
        name: String,
    },
    WaitZoneOperation {
        zone: String,
        name: String,
    },
    GetRegionOperation {
        region: String,
        name: String,
    },
    WaitRegionOperation {
        region: String,
        name: String,
    },
    GetSubnetwork {
        region: String,
        name: String,
    },
    PatchSubnetwork {
        region: String,
        name: String,
    },
    ListAddresses {
        region: String,
    },
    GetAddress {
        region: String,
        name: String,
    },
    InsertAddress {
        region: String,
    },
    DeleteAddress {
        region: String,
        name: String,
    },
    ListRanges,
    GetRange {
        name: String,
    },
    CreateRange,
    DeleteRange {
        name: String,
    },
    GetGlobalOperation {
        name: String,
    },
    /// A service account's assertion for a token.
    Token,
}

impl Call {
    /// The method and the project in the path; None where there is no such method.
    pub fn find(method: &str, path: &str) -> Option<(Call, String)> {
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        let own = |text: &str| text.to_owned();
        if (method, parts.as_slice()) == ("POST", &["token"]) {
            return Some((Call::Token, String::new()));
        }
        let (project, rest) = match parts.as_slice() {
            ["compute", "v1", "projects", project, rest @ ..]
            | ["v1", "projects", project, "locations", rest @ ..] => (project, rest),
            _ => return None,
        };
        let call = match (method, rest) {
            ("GET", ["zones", zone, "instances", name]) => Call::GetInstance {
                zone: own(zone),
                name: own(name),
            },
            ("GET", ["aggregated", "instances"]) => Call::AggregatedInstances,
            ("PATCH", ["zones", zone, "instances", name, "updateNetworkInterface"]) => {
                Call::UpdateNic {
                    zone: own(zone),
                    name: own(name),
                }
            }
            ("GET", ["zones", zone, "operations", name]) => Call::GetZoneOperation {
                zone: own(zone),
                name: own(name),
            },
            ("POST", ["zones", zone, "operations", name, "wait"]) => Call::WaitZoneOperation {
                zone: own(zone),
                name: own(name),
            },
            ("GET", ["regions", region, "operations", name]) => Call::GetRegionOperation {
                region: own(region),
                name: own(name),
            },
            ("POST", ["regions", region, "operations", name, "wait"]) => {
                Call::WaitRegionOperation {
                    region: own(region),
                    name: own(name),
                }
            }
            ("GET", ["regions", region, "subnetworks", name]) => Call::GetSubnetwork {
                region: own(region),
                name: own(name),
            },
            ("PATCH", ["regions", region, "subnetworks", name]) => Call::PatchSubnetwork {
                region: own(region),
                name: own(name),
            },
            ("GET", ["regions", region, "addresses"]) => Call::ListAddresses {
                region: own(region),
            },
            ("POST", ["regions", region, "addresses"]) => Call::InsertAddress {
                region: own(region),
            },
            ("GET", ["regions", region, "addresses", name]) => Call::GetAddress {
                region: own(region),
                name: own(name),
            },
            ("DELETE", ["regions", region, "addresses", name]) => Call::DeleteAddress {
                region: own(region),
                name: own(name),
            },
            ("GET", ["global", "internalRanges"]) => Call::ListRanges,
            ("POST", ["global", "internalRanges"]) => Call::CreateRange,
            ("GET", ["global", "internalRanges", name]) => Call::GetRange { name: own(name) },
            ("DELETE", ["global", "internalRanges", name]) => Call::DeleteRange { name: own(name) },
            ("GET", ["global", "operations", name]) => Call::GetGlobalOperation { name: own(name) },
            _ => return None,
        };
        Some((call, own(project)))
    }

    /// As Google's documents name it.
    pub fn name(&self) -> &'static str {
        match self {
            Call::GetInstance { .. } => "instances.get",
            Call::AggregatedInstances => "instances.aggregatedList",
            Call::UpdateNic { .. } => "instances.updateNetworkInterface",
            Call::GetZoneOperation { .. } => "zoneOperations.get",
            Call::WaitZoneOperation { .. } => "zoneOperations.wait",
            Call::GetRegionOperation { .. } => "regionOperations.get",
            Call::WaitRegionOperation { .. } => "regionOperations.wait",
            Call::GetSubnetwork { .. } => "subnetworks.get",
            Call::PatchSubnetwork { .. } => "subnetworks.patch",
            Call::ListAddresses { .. } => "addresses.list",
            Call::GetAddress { .. } => "addresses.get",
            Call::InsertAddress { .. } => "addresses.insert",
            Call::DeleteAddress { .. } => "addresses.delete",
            Call::ListRanges => "internalRanges.list",
            Call::GetRange { .. } => "internalRanges.get",
            Call::CreateRange => "internalRanges.create",
            Call::DeleteRange { .. } => "internalRanges.delete",
            Call::GetGlobalOperation { .. } => "operations.get",
            Call::Token => "token",
        }
    }

    /// The quota group that a request counts in.
    pub fn group(&self) -> Group {
        match self {
            Call::GetInstance { .. }
            | Call::AggregatedInstances
            | Call::GetSubnetwork { .. }
            | Call::ListAddresses { .. }
            | Call::GetAddress { .. }
            | Call::ListRanges
            | Call::GetRange { .. } => Group::Read,
            Call::GetZoneOperation { .. }
            | Call::WaitZoneOperation { .. }
            | Call::GetRegionOperation { .. }
            | Call::WaitRegionOperation { .. }
            | Call::GetGlobalOperation { .. } => Group::OperationRead,
            Call::UpdateNic { .. }
            | Call::PatchSubnetwork { .. }
            | Call::InsertAddress { .. }
            | Call::DeleteAddress { .. }
            | Call::CreateRange
            | Call::DeleteRange { .. } => Group::Mutation,
            Call::Token => Group::Metadata,
        }
    }
}
