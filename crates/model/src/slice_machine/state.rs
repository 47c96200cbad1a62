//! The checker's state.

use std::collections::BTreeSet;

use berth_core::slice::NodeName;
use berth_core::slice::machine::desk::{Desk, DeskEffect};
use berth_core::slice::machine::recall::{Recall, RecallEffect};
use berth_core::slice::machine::{
    Effect, Event, FileId, Lease, Me, Mode, ModeKind, NodeMachine, Role, Stored, Token, Uid,
};
use berth_core::{Address, Prefix};

use super::server::Server;

/// The owner of pods whose address is allocated in the plain pool.
pub const DESK: usize = 9;

/// A precaution that the executor does not carry out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Careless {
    Not,
    /// A lease is deleted regardless of its version.
    DeleteAnyVersion,
    /// A lease is resumed without a write.
    SilentResume,
    /// The mode is not read after the claim.
    IgnoreMode,
    /// The plain pool's entries are not imported.
    IgnorePlain,
    /// The desk ignores what leases yield.
    IgnoreYields,
    /// A yield is written before it is committed.
    YieldFirst,
    /// The desk lists leases before it reads the mode.
    ListFirst,
    /// A plain commit does not test the token.
    AnyToken,
    /// Other nodes' published pools are not read.
    IgnoreOthers,
    /// An empty published pool counts as none.
    EmptyIsAbsent,
    /// New slices are claimed right after an outage.
    NoSettling,
    /// This node's published pool is not read.
    IgnorePublished,
    /// The runtime's result cache is not read.
    IgnoreCache,
    /// Two processes own one file.
    NoLock,
    /// A process that serves one call takes over another file's slices.
    EngineTakesOver,
    /// A file is trusted without the API server although it may be an older copy.
    TrustAnyFile,
    /// A plain pool that does not exist is created as a plain one.
    AbsentIsPlain,
    /// The controller reclaims without a second proof.
    NoSecondProof,
}

/// How often each fault or event may happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Budget {
    pub crashes: u8,
    pub losses: u8,
    pub late: u8,
    pub copies: u8,
    pub by_hand: u8,
    pub plain_by_hand: u8,
    pub backups: u8,
    pub gone: u8,
    pub modes: u8,
    pub offline: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Process {
    pub node: usize,
    pub file: usize,
    pub role: Role,
    pub machine: Option<NodeMachine>,
    /// Effects that are not executed yet; a crash forgets them.
    pub queue: Vec<Effect>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Request {
    pub effect: Effect,
    /// The node that sent it, and its process, if that waits for the answer.
    pub node: usize,
    pub from: Option<usize>,
    pub answer: Option<Event>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct File {
    pub now: Stored,
    pub copy: Option<Stored>,
    /// Whether it is an older copy, as evidence outside the file shows.
    pub is_restored: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct State {
    pub slice: Prefix,
    pub server: Server,
    pub backup: Option<Server>,
    pub processes: Vec<Process>,
    pub files: Vec<File>,
    pub wire: Vec<Request>,
    /// Nodes that were declared gone, and how often each node was registered.
    pub gone: BTreeSet<usize>,
    pub desk: Option<Desk>,
    pub desk_request: Option<DeskEffect>,
    /// What a careless desk listed.
    pub listed: Option<(Vec<Lease>, Vec<Prefix>)>,
    pub recall: Recall,
    pub recall_request: Option<RecallEffect>,
    pub pods: BTreeSet<(Address, usize)>,
    pub has_cache: bool,
    pub budget: Budget,
}

pub fn name(node: usize) -> NodeName {
    NodeName::new(format!("n{node}"))
}

pub fn file(n: usize) -> File {
    File {
        now: Stored::new(FileId(1000 + n as u128)),
        copy: None,
        is_restored: false,
    }
}

pub fn process(node: usize, file: usize, role: Role) -> Process {
    Process {
        node,
        file,
        role,
        machine: None,
        queue: Vec::new(),
    }
}

impl State {
    /// Two agents and a sliced range of one slice.
    pub fn new(slice: &str, budget: Budget) -> State {
        let server = Server {
            mode: Some(Mode::new(ModeKind::Sliced, Token(0))),
            ..Server::default()
        };
        let agent = |node| process(node, node, Role::Agent);
        State {
            slice: slice.parse().unwrap(),
            server,
            backup: None,
            processes: vec![agent(0), agent(1)],
            files: vec![file(0), file(1)],
            wire: Vec::new(),
            gone: BTreeSet::new(),
            desk: None,
            desk_request: None,
            listed: None,
            recall: Recall::Idle,
            recall_request: None,
            pods: BTreeSet::new(),
            has_cache: true,
            budget,
        }
    }

    pub fn with_desk(mut self) -> State {
        self.desk = Some(Desk::Unread);
        self
    }

    pub fn me(&self, p: usize) -> Me {
        Me {
            node: name(self.processes[p].node),
            uid: Uid(1000),
            role: self.processes[p].role,
        }
    }

    pub fn addresses(&self) -> Vec<Address> {
        let (first, last) = (self.slice.network(), self.slice.last());
        let mut all = vec![first];
        while let Some(next) = all.last().and_then(|address| address.next()) {
            if next > last {
                break;
            }
            all.push(next);
        }
        all
    }

    pub fn allocators(&self, address: Address) -> usize {
        let nodes = self.processes.iter().filter(|process| {
            let machine = process.machine.as_ref();
            machine.is_some_and(|machine| machine.may_allocate(address))
        });
        let token = self.desk.as_ref().and_then(|desk| desk.offers(address));
        let desk = token.is_some()
            && token == self.server.token()
            && !self.server.plain.contains(&address);
        nodes.count() + usize::from(desk)
    }

    pub fn is_server_restored(&self) -> bool {
        self.backup.is_some() && self.budget.backups == 0
    }

    pub fn owners(&self, address: Address) -> usize {
        self.pods.iter().filter(|(at, _)| *at == address).count()
    }

    /// The smallest number that is not in use: stamps, tokens and nonces are only compared for equality, so it is as
    /// good as a random one, and the number of states stays small.
    pub fn fresh(&self) -> u64 {
        let text = format!("{self:?}");
        let mut used = 0u128;
        for piece in text.split('(').skip(1) {
            let digits = piece.split(')').next().unwrap_or_default();
            if let Ok(number @ 0..128) = digits.parse::<u32>() {
                used |= 1 << number;
            }
        }
        u64::from((!used).trailing_zeros())
    }
}
