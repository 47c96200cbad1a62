//! What is wrong with a policy's captures: the field, the value and what would be right.

use berth_core::{Address, Family};
use thiserror::Error;

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CaptureError {
    #[error(
        "spec.capture.{name}: `{value}` is no pool capture; write ippool.NAME.allocate, with the name of a NodeIPPool"
    )]
    Malformed { name: String, value: String },
    #[error(
        "spec.capture.{name}: `{action}` in `{value}` is unknown; the one action of a pool is allocate"
    )]
    Action {
        name: String,
        value: String,
        action: String,
    },
    #[error(
        "spec.capture.{name}: `{pool}` can't be the name of a NodeIPPool; names are of a-z, 0-9, - and ., at most 63 characters"
    )]
    PoolName { name: String, pool: String },
    #[error(
        "spec.capture.{name}: templates can't spell this name; use letters, digits, - and _, beginning with a letter"
    )]
    Name { name: String },
    #[error(
        "spec.capture.{name}: `{value}` pipes a pool capture; it has only fields for templates, such as {{{{ capture.{pool}.ip }}}}"
    )]
    Piped {
        name: String,
        value: String,
        pool: String,
    },
    #[error(
        "spec.capture.{name}: `{value}` compares or replaces with a pool capture; it has only fields for templates in desiredState"
    )]
    Compared { name: String, value: String },
    #[error(
        "spec.capture.{name}: `{value}` has `!=`, which nmstate does not know; use == on what is wanted"
    )]
    NotEqual { name: String, value: String },
    #[error(
        "{path}: `{{{{ {template} }}}}` names no field; a pool capture has ip, prefix-length, gateway and dns"
    )]
    Field { path: String, template: String },
    #[error(
        "{path}: `{{{{ {template} }}}}`: pool {pool} has no {field}; add spec.{field} to a pool that has one, or leave it out here"
    )]
    Absent {
        path: String,
        template: String,
        pool: String,
        field: &'static str,
    },
    #[error(
        "{path}: `{text}` can't hold a list; write `{{{{ {template} }}}}` alone, or one entry as {{{{ {template}.0 }}}}"
    )]
    ListInText {
        path: String,
        text: String,
        template: String,
    },
    #[error(
        "{path}: {address} of pool {pool} is {found}, and this block is for {expected}; use a pool of {expected}"
    )]
    Family {
        path: String,
        address: Address,
        pool: String,
        found: Family,
        expected: Family,
    },
    #[error(
        "{path}: `{value}` is no pool reference; write ipam: {{pool: NAME}}, with the name of a NodeIPPool and nothing beside it"
    )]
    Inline { path: String, value: String },
    #[error(
        "{path}: the entry has ipam and {beside}; a pool sets ip and prefix-length, so leave {beside} out"
    )]
    InlineBeside { path: String, beside: String },
    #[error("spec.{field}: {found} is more than a policy may have; at most {most}")]
    TooMany {
        field: &'static str,
        found: usize,
        most: usize,
    },
    #[error("spec.{field}: it can't be read; give {expected}")]
    Shape {
        field: &'static str,
        expected: &'static str,
    },
    #[error("capture {capture}: no address of pool {pool} was allocated")]
    NotGranted { capture: String, pool: String },
}
