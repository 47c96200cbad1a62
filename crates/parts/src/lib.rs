//! berth-parts
