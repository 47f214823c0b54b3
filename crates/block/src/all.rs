//! Several requests as one.

use crate::{Request, Result};
use futures_util::future::join_all;
use smallvec::SmallVec;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

/// Up to so many requests are asked in turn whenever one of them wakes the task; more of them get a list of who
/// woke, which costs an allocation each.
const FEW: usize = 8;

/// Waits for all of `requests`, also when one fails, and returns an error if there was one.
///
/// A started request completes: none is dropped because another one failed. They are submitted before this returns;
/// the future only waits for those that did not complete at once.
pub fn all(requests: impl IntoIterator<Item = Request>) -> impl Future<Output = Result<()>> {
    let mut result = Ok(());
    let mut pending: SmallVec<[Request; 2]> = SmallVec::new();
    for mut request in requests {
        match request.ready() {
            Some(done) => result = result.and(done),
            None => pending.push(request),
        }
    }
    async move {
        let rest = if pending.len() > FEW {
            join_all(pending).await.into_iter().collect()
        } else {
            few(pending).await
        };
        result.and(rest)
    }
}

async fn few(mut pending: SmallVec<[Request; 2]>) -> Result<()> {
    let mut result = Ok(());
    poll_fn(|cx| {
        pending.retain(|request| match Pin::new(request).poll(cx) {
            Poll::Ready(done) => {
                result = std::mem::replace(&mut result, Ok(())).and(done);
                false
            }
            Poll::Pending => true,
        });
        if pending.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    result
}
