//! What a test lets a layer do wrong, to see that it is noticed (a canary). Without the feature `canaries` nothing is.

#[cfg(any(test, feature = "canaries"))]
thread_local! {
    /// What is wrong in this thread.
    pub static FLAW: std::cell::Cell<Option<&'static str>> = const { std::cell::Cell::new(None) };
}

/// True if a test wants this to be wrong.
#[cfg(any(test, feature = "canaries"))]
pub fn flawed(flaw: &'static str) -> bool {
    FLAW.get() == Some(flaw)
}

/// False: nothing is wrong outside of tests.
#[cfg(not(any(test, feature = "canaries")))]
#[inline(always)]
pub fn flawed(_: &'static str) -> bool {
    false
}

/// Runs `test` with this wrong, and gives the words of its failure.
#[cfg(any(test, feature = "canaries"))]
pub fn failure_of(flaw: &'static str, test: impl FnOnce() + std::panic::UnwindSafe) -> String {
    FLAW.set(Some(flaw));
    let failed = std::panic::catch_unwind(test);
    FLAW.set(None);
    let words = failed.expect_err("nothing noticed");
    let text = words.downcast_ref::<&str>().map(|words| (*words).to_owned());
    text.or_else(|| words.downcast_ref::<String>().cloned()).unwrap_or_default()
}
