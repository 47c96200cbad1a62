//! berth-vms
