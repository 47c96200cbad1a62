//! Runs the same function for many items, some at a time, with a progress bar.

use anyhow::Result;
use futures::{StreamExt, TryStreamExt};

use crate::figure::progress;

/// The results of `each` for every number below `count`, in order; the first error ends all.
pub async fn each<T>(
    what: &str,
    count: usize,
    at_once: usize,
    each: impl AsyncFn(usize) -> Result<T>,
) -> Result<Vec<T>> {
    let bar = progress(what, count as u64);
    let (each, counter) = (&each, &bar);
    let done = futures::stream::iter(0..count)
        .map(|number| async move {
            let one = each(number).await?;
            counter.inc(1);
            anyhow::Ok((number, one))
        })
        // Unordered: a slow item does not keep others from starting.
        .buffer_unordered(at_once.max(1))
        .try_collect::<Vec<(usize, T)>>()
        .await;
    bar.finish_and_clear();
    let mut done = done?;
    done.sort_unstable_by_key(|(number, _)| *number);
    Ok(done.into_iter().map(|(_, one)| one).collect())
}
