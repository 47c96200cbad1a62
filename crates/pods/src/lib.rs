//! berth-pods
