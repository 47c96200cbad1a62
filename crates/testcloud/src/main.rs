//! The local Google Cloud of the tests as a program (`cargo xtask compute`), to try things by hand.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use berth_testcloud::{AliasRange, Cloud, Project};
use clap::Parser;

#[derive(Parser)]
#[command(about = "A local Google Cloud for tests")]
struct Compute {
    /// Where the APIs listen.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8081")]
    listen: SocketAddr,
    /// How long an operation takes; Google's take about three seconds.
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 3000)]
    operation: u64,
    /// How many VMs there are: node-1, node-2 and so on, each with a metadata server.
    #[arg(long, value_name = "COUNT", default_value_t = 2)]
    nodes: u8,
}

const REGION: &str = "us-central1";
const ZONE: &str = "us-central1-a";

fn main() -> anyhow::Result<()> {
    Compute::parse().run()
}

impl Compute {
    #[allow(clippy::print_stdout)]
    fn run(self) -> anyhow::Result<()> {
        let runtime = tokio::runtime::Runtime::new().context("start a runtime")?;
        runtime.block_on(async {
            let mut project = Project::new("berth-test");
            project.operation_time = Duration::from_millis(self.operation);
            project.add_subnetwork(REGION, "nodes", "10.128.0.0/20");
            project.add_secondary_range(REGION, "nodes", "pods", "10.4.0.0/14");
            for node in 1..=self.nodes {
                let own = AliasRange::of("pods", &format!("10.4.{node}.0/24"));
                project.add_instance(ZONE, &format!("node-{node}"), (REGION, "nodes"), vec![own]);
            }
            let cloud = Cloud::listen(project, self.listen).await?;
            println!("project berth-test, zone {ZONE}, subnet nodes; --compute-endpoint {0} --networkconnectivity-endpoint {0}", cloud.endpoint());
            for node in 1..=self.nodes {
                let host = cloud.metadata(ZONE, &format!("node-{node}")).await?;
                println!("node-{node}: GCE_METADATA_HOST={host}");
            }
            tokio::signal::ctrl_c().await.context("wait for the end")
        })
    }
}
