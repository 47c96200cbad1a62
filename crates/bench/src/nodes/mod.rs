//! The nodes front on a real API server: many nodes that join at once, against handlers that each write the pool; one
//! node that joins; a pool that is created again; the memory that the front adds to an idle agent.
//!
//! Handlers share this process. Each has its own client, token and TLS connections, to the API server and to the
//! leader, which is a separate process. Their host program is a script that keeps a state: in a cluster each would
//! have a real host.

mod idle;
mod join;
mod pool;
mod retry;
mod site;

use anyhow::Result;

use crate::figure::Figure;
use site::Site;

#[derive(clap::Args)]
pub struct Nodes {
    /// Nodes that join at once.
    #[arg(long, default_value_t = 200)]
    nodes: usize,
    /// Nodes that join one after the other, when the others are served.
    #[arg(long, default_value_t = 10)]
    alone: usize,
    /// How long handlers that write the pool themselves are waited for, in seconds.
    #[arg(long, default_value_t = 180)]
    limit: u64,
}

impl Nodes {
    pub async fn run(&self) -> Result<Vec<Figure>> {
        let site = Site::start().await?;
        let mut figures = Vec::new();
        let theirs = retry::run(&site, self.nodes, self.limit).await?;
        site.limit_agents().await?;
        let leader = site.leader().await?;
        let joined = join::at_once(&site, self.nodes).await?;
        figures.extend(joined.figures(&theirs));
        figures.extend(join::alone(&site, &joined, self.alone).await?);
        // A leader rebuilds a pool, whether handlers run or not.
        drop(joined);
        figures.extend(pool::created_again(&site, self.nodes).await?);
        drop(leader);
        figures.extend(idle::memory(&site).await?);
        Ok(figures)
    }
}
