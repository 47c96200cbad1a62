//! Claims an address for a capture: the one that the enactment names, else the node's reservation, else the first free one.

use berth_core::{Address, AddressRequest, Allocate, Answer, Refusal, Request, Space};
use berth_ledger::PoolKey;
use kube::ResourceExt;
use kube::api::{DynamicObject, ListParams, PartialObjectMeta};
use serde_json::json;

use super::execute::{Done, HandlerError, Next, Run};
use super::observe::wants;
use crate::enactment::Claims;
use crate::pool::codec::{self, Holder, TAKEN_BACK};

/// Objects in one answer of a list.
const PAGE: u32 = 500;

impl Run<'_> {
    pub(super) async fn allocate(
        &mut self,
        pool: &str,
        capture: &str,
        address: Option<Address>,
    ) -> Result<Done, HandlerError> {
        let holder = Holder::new(&self.handler.config.node, self.policy, capture);
        let granted = match address {
            Some(address) => self.take_back(pool, &holder, address).await?,
            None => None,
        };
        let granted = match granted {
            Some(granted) => Some(granted),
            // The pool has allocated it to another owner, or no longer has it: only then is another one requested.
            None if self.seen.node.ready => self.allocate_new(pool, &holder).await?,
            None => return Ok(Done::Rest(Next::Settled)),
        };
        let metrics = &self.handler.config.metrics;
        metrics.allocated(pool, granted.is_some());
        match granted {
            Some(address) => {
                self.memory.grant(pool, capture, address);
                Ok(Done::Again)
            }
            // The next plan reads the pool again and reports it.
            None => Ok(Done::Again),
        }
    }

    /// Claims the address that the enactment names. One that the pool has allocated without a description may be another node's, whose
    /// enactment then claims it (I1).
    async fn take_back(
        &mut self,
        pool: &str,
        holder: &Holder,
        address: Address,
    ) -> Result<Option<Address>, HandlerError> {
        let record = holder.record().with(TAKEN_BACK, "true");
        let space = std::sync::Arc::new(Space::only(address));
        let claim = Request::Allocate(Allocate {
            record: record.clone(),
            wants: vec![AddressRequest::exactly(space, address)],
        });
        let desk = self.handler.desks.of(&PoolKey::named(pool));
        let unnamed = codec::unnamed();
        match desk.submit(claim).await? {
            Answer::Granted(granted) => Ok(granted.first().map(|one| one.address)),
            Answer::Refused(Refusal::Held { by, .. }) if by == unnamed.owner => {
                if let Some(other) = self.other_claim(pool, address).await? {
                    tracing::warn!(pool, %address, other, "another enactment claims the address too; allocating another one");
                    self.memory.contest(pool, address);
                    return Ok(None);
                }
                let transfer = Request::Transfer {
                    address,
                    expected: unnamed,
                    record,
                };
                let answer = desk.submit(transfer).await?;
                Ok(matches!(answer, Answer::Transferred).then_some(address))
            }
            _ => Ok(None),
        }
    }

    /// Another enactment that claims an address, by a quorum read of all.
    async fn other_claim(
        &self,
        pool: &str,
        address: Address,
    ) -> Result<Option<String>, HandlerError> {
        let mut params = ListParams::default().limit(PAGE);
        loop {
            let page = self.handler.enactments.list_metadata(&params);
            let page = self.handler.ask(page).await?;
            let claims = |one: &&PartialObjectMeta<DynamicObject>| {
                let annotations = one.annotations();
                let (claims, _) =
                    Claims::read(&json!({ "metadata": { "annotations": annotations } }));
                one.name_any() != self.name && claims.of_pool(pool).any(|(_, of)| of == address)
            };
            if let Some(other) = page.items.iter().find(claims) {
                return Ok(Some(other.name_any()));
            }
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params = params.continue_token(&token),
                None => return Ok(None),
            }
        }
    }

    async fn allocate_new(
        &self,
        pool: &str,
        holder: &Holder,
    ) -> Result<Option<Address>, HandlerError> {
        let seen = self.seen.pools.get(pool);
        let Some(read) = seen.and_then(|pool| pool.read.as_ref().ok()) else {
            return Ok(None);
        };
        let desk = self.handler.desks.of(&PoolKey::named(pool));
        for want in wants(read, &holder.node) {
            let claim = Request::Allocate(Allocate {
                record: holder.record(),
                wants: vec![want],
            });
            if let Answer::Granted(granted) = desk.submit(claim).await? {
                return Ok(granted.first().map(|one| one.address));
            }
        }
        Ok(None)
    }
}
