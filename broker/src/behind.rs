//! Reads that may be behind: a caller says that it would rather see what this broker knows than wait
//! for the leader.
//!
//! That is a property of one call of the API and holds for every read that the call makes, whichever
//! function makes it. So it goes with the task that serves the call, not through every signature.
//! Changes are never made under it.

use std::future::Future;

tokio::task_local! {
    static MAY_BE_BEHIND: ();
}

/// Runs `call`; the cell's reads within it show what this broker knows, and ask nobody.
pub(crate) async fn behind<F: Future>(call: F) -> F::Output {
    MAY_BE_BEHIND.scope((), call).await
}

/// Whether the reads of this task may be behind.
pub(crate) fn may_be_behind() -> bool {
    MAY_BE_BEHIND.try_with(|()| ()).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_what_runs_within_may_be_behind() {
        assert!(!may_be_behind());
        assert!(behind(async { may_be_behind() }).await);
        assert!(!may_be_behind());
        let other = behind(async { tokio::spawn(async { may_be_behind() }).await.unwrap() }).await;
        assert!(!other, "a task of its own is another call");
    }
}
