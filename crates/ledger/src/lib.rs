//! berth-ledger
