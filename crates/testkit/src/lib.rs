//! berth-testkit
