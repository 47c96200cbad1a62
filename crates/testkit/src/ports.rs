//! Free ports of loopback.

use std::net::TcpListener;

use anyhow::{Context, Result};

/// Ports that were free just now, all different. Another process may take one before its server does: the caller must
/// expect that and retry.
pub(crate) fn free<const N: usize>() -> Result<[u16; N]> {
    let mut held = Vec::with_capacity(N);
    let mut ports = [0; N];
    for port in &mut ports {
        let listener = TcpListener::bind(("127.0.0.1", 0)).context("find a free loopback port")?;
        *port = listener
            .local_addr()
            .context("find a free loopback port")?
            .port();
        held.push(listener);
    }
    Ok(ports)
}
