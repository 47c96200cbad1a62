//! `berth vm`: the pools of pre-created VMs, through the agent's API.

use std::io::Read;
use std::net::IpAddr;
use std::path::PathBuf;

use anyhow::Context;
use berth_cni::wire::DEFAULT_SOCKET;
use berth_vms::http::{Allocations, Deallocated, Recoveries, Statuses};
use berth_vms::{Allocation, Recovered, Returned, Status};
use clap::{Args, Subcommand};

use crate::output::{self, Format, Row};
use crate::vm_client::{VmClient, encoded, query};

#[derive(Debug, Args)]
pub struct Vm {
    #[command(subcommand)]
    command: Command,
    /// The agent's socket.
    #[arg(long, global = true, env = "BERTH_SOCKET", default_value = DEFAULT_SOCKET)]
    socket: PathBuf,
    /// The pool [default: every pool where that makes sense, else the default pool].
    #[arg(long, global = true)]
    pool: Option<String>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// How many VMs are free, in use and being cleaned, and problems of the others.
    Status,
    /// List allocations.
    List {
        /// Only allocations of this node.
        #[arg(long)]
        node: Option<String>,
    },
    /// Show the allocation of an ID or of an address.
    Show { id_or_ip: String },
    /// Allocate a VM. The same ID gets the same VM.
    Allocate {
        /// The allocation's ID, usually {pod}-{sandbox}.
        id: String,
        #[arg(long, default_value = "")]
        pod: String,
        #[arg(long, default_value = "")]
        namespace: String,
    },
    /// Release a VM. It is free after it was rebooted.
    Deallocate {
        id: String,
        /// Release it as it is, without a reboot: for VMs that you have wiped or removed yourself.
        #[arg(long)]
        force: bool,
        /// Wait this many seconds for the reboot.
        #[arg(long, value_name = "SECONDS", default_value_t = 0)]
        wait: u64,
    },
    /// Write a VM's user data.
    UserData {
        id: String,
        /// The file with it, or - for stdin.
        file: PathBuf,
    },
    /// Repair the state and resume cleanups.
    Recover {
        /// Also take back every VM of the agent's node, with a reboot: only if its pods are gone.
        #[arg(long)]
        take_back: bool,
    },
    /// Print the API's OpenAPI document.
    Api,
}

impl Row for Status {
    const COLUMNS: &'static [&'static str] = &[
        "pool",
        "total",
        "available",
        "in use",
        "quarantined",
        "trouble",
    ];

    fn cells(&self) -> Vec<String> {
        let mut trouble = Vec::new();
        let ips = |ips: &[IpAddr]| {
            ips.iter()
                .map(IpAddr::to_string)
                .collect::<Vec<_>>()
                .join(" ")
        };
        for (what, which) in [
            ("silent", &self.silent),
            ("host key not allowed", &self.untrusted),
            ("login refused", &self.locked),
            ("still has user data", &self.occupied),
            ("cleanup failed", &self.uncleaned),
            ("two owners", &self.doubled),
            (
                "of an unknown boot, see recover --take-back",
                &self.not_taken_back,
            ),
        ] {
            if !which.is_empty() {
                trouble.push(format!("{what}: {}", ips(which)));
            }
        }
        trouble.extend(
            self.unparsed
                .iter()
                .map(|entry| format!("unreadable {entry}")),
        );
        let counts = [self.total, self.available, self.in_use, self.quarantined];
        let mut cells = vec![self.pool.clone()];
        cells.extend(counts.map(|count| count.to_string()));
        cells.push(trouble.join("; "));
        cells
    }
}

impl Row for Allocation {
    const COLUMNS: &'static [&'static str] =
        &["ip", "allocation", "pool", "node", "pod", "since", "state"];

    fn cells(&self) -> Vec<String> {
        let state = match &self.quarantine {
            None if self.checking.is_some() => "being checked".into(),
            None => "in use".into(),
            Some(quarantine) => match &quarantine.error {
                None => "being cleaned".into(),
                Some(error) => format!("not clean after {} tries: {error}", quarantine.tries),
            },
        };
        let pod = match self.pod_namespace.as_str() {
            "" => self.pod_name.clone(),
            namespace => format!("{namespace}/{}", self.pod_name),
        };
        vec![
            self.ip.to_string(),
            self.allocation_id.clone(),
            self.pool.clone(),
            self.node_name.clone(),
            pod,
            self.allocated_at.clone().unwrap_or_default(),
            state,
        ]
    }
}

impl Row for Recovered {
    const COLUMNS: &'static [&'static str] = &[
        "pool",
        "taken back",
        "resumed",
        "undone",
        "dropped",
        "added",
        "set aside",
    ];

    fn cells(&self) -> Vec<String> {
        let set_aside = match (self.set_aside, self.unknown) {
            (false, _) => String::new(),
            (true, unknown) => format!("yes, {unknown} VMs held"),
        };
        vec![
            self.pool.clone(),
            self.taken_back.to_string(),
            self.resumed.to_string(),
            self.undone.to_string(),
            self.dropped.join(" "),
            self.added.to_string(),
            set_aside,
        ]
    }
}

impl Vm {
    pub async fn run(self, format: Format) -> anyhow::Result<()> {
        let client = VmClient::new(&self.socket);
        let pool = ("pool", self.pool.clone());
        let in_pool = query(std::slice::from_ref(&pool));
        match self.command {
            Command::Status => {
                let status: Statuses = client.get(&format!("/status{in_pool}")).await?;
                output::print(format, &status.pools)?;
                if format == Format::Table {
                    for ip in &status.waiting {
                        output::print_line(&format!(
                            "{ip} joins its pool when another pool's owner releases it"
                        ))?;
                    }
                    if let Some(problem) = &status.problem {
                        output::print_line(&format!(
                            "the edited settings are not used: {problem}"
                        ))?;
                    }
                }
                Ok(())
            }
            Command::List { node } => {
                let asked = query(&[pool, ("node", node)]);
                let listed: Allocations = client.get(&format!("/allocations{asked}")).await?;
                output::print(format, &listed.allocations)
            }
            Command::Show { id_or_ip } => {
                let path = match id_or_ip.parse::<IpAddr>() {
                    Ok(ip) => format!("/ips/{ip}"),
                    Err(_) => format!("/allocations/{}{in_pool}", encoded(&id_or_ip)),
                };
                let found: Allocation = client.get(&path).await?;
                output::print(format, &[found])
            }
            Command::Allocate { id, pod, namespace } => {
                let wish = serde_json::json!({ "allocationID": id, "podName": pod, "podNamespace": namespace });
                let path = format!("/allocations{in_pool}");
                let allocated: Allocation = client.post(&path, serde_json::to_vec(&wish)?).await?;
                output::print(format, &[allocated])
            }
            Command::Deallocate { id, force, wait } => {
                let force = force.then(|| "true".to_string());
                let wait = (wait > 0).then(|| wait.to_string());
                let asked = query(&[pool, ("force", force), ("wait", wait)]);
                let path = format!("/allocations/{}{asked}", encoded(&id));
                let ended: Deallocated = client.delete(&path).await?;
                match (format, ended.returned) {
                    (Format::Json, _) => output::print_line(&serde_json::to_string_pretty(&ended)?),
                    (_, Returned::Released) => output::print_line("released"),
                    (_, Returned::Quarantined) => {
                        output::print_line("being cleaned: the VM is free after its reboot")
                    }
                    // A repeat is not a failure.
                    (_, Returned::Nothing) => output::print_line("nothing held"),
                }
            }
            Command::UserData { id, file } => {
                let data = read(&file)?;
                let path = format!("/allocations/{}/user-data{in_pool}", encoded(&id));
                let written: Allocation = client.put(&path, data).await?;
                output::print_line(&format!("written to {}", written.ip))
            }
            Command::Recover { take_back } => {
                let take_back = take_back.then(|| "true".to_string());
                let asked = query(&[pool, ("takeBack", take_back)]);
                let done: Recoveries = client.post(&format!("/recover{asked}"), Vec::new()).await?;
                output::print(format, &done.pools)
            }
            Command::Api => {
                let document: serde_json::Value = client.get("/openapi.json").await?;
                output::print_line(&serde_json::to_string_pretty(&document)?)
            }
        }
    }
}

fn read(file: &PathBuf) -> anyhow::Result<Vec<u8>> {
    if file.as_os_str() == "-" {
        let mut data = Vec::new();
        std::io::stdin().read_to_end(&mut data)?;
        return Ok(data);
    }
    std::fs::read(file).with_context(|| format!("can't read {}", file.display()))
}
