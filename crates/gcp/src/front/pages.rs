//! Allocating in a pool that has pages, and making another page when all objects are full.

use std::sync::Arc;

use berth_cni::CniError;
use berth_core::{AddressRequest, Answer, Owner, Refusal, Request};
use berth_ledger::object::Codec as _;
use berth_ledger::{LedgerError, Version};

use super::config::{invalid, later};
use super::engine::Engine;
use super::pools::{PoolInfo, undone, unloaded, unread};
use crate::pool::{IpPools, pages};

/// Other processes make pages too: the list is read again so many times.
const TRIES: usize = 8;
/// Kubernetes' longest name.
const NAME: usize = 253;

impl Engine {
    /// Any address of the pool, for this owner; a page is made where every object is full.
    pub(super) async fn ask_any(
        &self,
        info: &Arc<PoolInfo>,
        owner: &Owner,
        request: impl Fn(AddressRequest) -> Request,
    ) -> Result<Answer, CniError> {
        let mut info = Arc::clone(info);
        for _ in 0..TRIES {
            self.check_sound(&info).await?;
            let (mut exhausted, mut full) = (None, None);
            for (key, space) in info.parts_for(owner) {
                let request = request(AddressRequest::any(Arc::clone(space)));
                match self.desks.of(key).submit(request).await {
                    Ok(Answer::Refused(refusal @ Refusal::Exhausted { .. })) => {
                        exhausted = Some(Answer::Refused(refusal));
                    }
                    Err(error) if matches!(error.ledger(), Some(LedgerError::Full { .. })) => {
                        full = Some(error);
                    }
                    Err(error) if matches!(error.ledger(), Some(LedgerError::Moved { .. })) => {
                        full = Some(error);
                        break;
                    }
                    answer => return answer.map_err(undone),
                }
            }
            match (full, exhausted) {
                (None, Some(exhausted)) => return Ok(exhausted),
                _ => info = self.with_another_page(&info).await?,
            }
        }
        Err(later(
            format!("IPPool {}: its pages keep changing", info.name),
            "the runtime tries again",
        ))
    }

    /// Whether the pool's own object is as Berth wrote it: a plugin that knows no pages could allocate a page's address there.
    pub(super) async fn check_sound(&self, info: &PoolInfo) -> Result<(), CniError> {
        if info.pages.is_empty() {
            return Ok(());
        }
        let known = self.sound.lock().get(&info.name).cloned();
        let known = known.unwrap_or_else(Version::default);
        // Costs a read of the metadata unless the object has changed.
        let read = self.desks.ledger().refresh(&info.key, &known).await;
        if let Some(newer) = read.map_err(unloaded)? {
            let mut sound = self.sound.lock();
            sound.insert(info.name.clone(), newer.version);
        }
        Ok(())
    }

    /// The pool with a page more, also where another process has made it.
    async fn with_another_page(&self, info: &PoolInfo) -> Result<Arc<PoolInfo>, CniError> {
        let name = &info.name;
        let unreadable = |why: String| {
            invalid(
                format!("IPPool {name}: {why}"),
                "correct it; it is left as it is",
            )
        };
        let gone = || later(format!("IPPool {name} is gone"), "the runtime tries again");
        let object = self
            .cluster
            .pool(name)
            .await
            .map_err(unread)?
            .ok_or_else(gone)?;
        let listed = pages::pages_of(&object).map_err(unreadable)?;
        let known = |page: &super::pools::Page| listed.contains_key(&page.block);
        let another = listed.len() != info.pages.len() || !info.pages.iter().all(known);
        if !another {
            let held = IpPools.decode(&info.key, &object).map_err(unreadable)?;
            let block = pages::free_block(info.cidr, &held, &listed).ok_or_else(|| {
                later(
                    format!(
                        "IPPool {name} is full, and each /{} of it has allocations",
                        pages::PREFIX
                    ),
                    "addresses of pods that end make room",
                )
            })?;
            if pages::name_of(name, block).len() > NAME {
                return Err(unreadable("its name is too long for a page's".to_owned()));
            }
            let page = pages::page_object(&object, info.cidr, block);
            let uid = self.cluster.create_page(&page).await.map_err(unread)?;
            let next = pages::with_page(object, info.cidr, (block, uid));
            if self.cluster.replace_pool(&next).await.map_err(unread)? {
                tracing::info!(pool = name, %block, "the pool has another page");
            }
        }
        self.forget_pool(name);
        self.pool_named(name, info.method()).await
    }
}
