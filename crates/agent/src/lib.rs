//! berth-agent
