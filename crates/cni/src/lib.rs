//! berth-cni
