//! Errors that a test injects into a layer, to see that they are noticed (canaries). Without the feature
//! `canaries` there are none.

#[cfg(any(test, feature = "canaries"))]
thread_local! {
    /// The error injected in this thread.
    pub static FLAW: std::cell::Cell<Option<&'static str>> = const { std::cell::Cell::new(None) };
}

/// True if a test injects this error.
#[cfg(any(test, feature = "canaries"))]
pub fn flawed(flaw: &'static str) -> bool {
    FLAW.get() == Some(flaw)
}

/// False: no errors outside of tests.
#[cfg(not(any(test, feature = "canaries")))]
#[inline(always)]
pub fn flawed(_: &'static str) -> bool {
    false
}

/// Runs `test` with this error injected, and returns the message of its failure.
#[cfg(any(test, feature = "canaries"))]
pub fn failure_of(flaw: &'static str, test: impl FnOnce() + std::panic::UnwindSafe) -> String {
    FLAW.set(Some(flaw));
    let failed = std::panic::catch_unwind(test);
    FLAW.set(None);
    let message = failed.expect_err("nothing noticed");
    let text = message.downcast_ref::<&str>().map(|message| (*message).to_owned());
    text.or_else(|| message.downcast_ref::<String>().cloned()).unwrap_or_default()
}
