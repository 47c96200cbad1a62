//! berth-desk
