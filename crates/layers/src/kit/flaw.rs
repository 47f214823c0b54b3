//! What a test lets a layer do wrong, to see that it is noticed (a canary). Outside of tests nothing is.

#[cfg(test)]
thread_local! {
    /// What is wrong in this thread.
    pub static FLAW: std::cell::Cell<Option<&'static str>> = const { std::cell::Cell::new(None) };
}

/// True if a test wants this to be wrong.
macro_rules! flawed {
    ($flaw:literal) => {{
        #[cfg(test)]
        let flawed = crate::kit::flaw::FLAW.get() == Some($flaw);
        #[cfg(not(test))]
        let flawed = false;
        flawed
    }};
}

pub(crate) use flawed;

/// Runs `test` with this wrong, and gives the words of its failure.
#[cfg(test)]
pub fn failure_of(flaw: &'static str, test: impl FnOnce() + std::panic::UnwindSafe) -> String {
    FLAW.set(Some(flaw));
    let failed = std::panic::catch_unwind(test);
    FLAW.set(None);
    let words = failed.expect_err("nothing noticed");
    let text = words.downcast_ref::<&str>().map(|words| (*words).to_owned());
    text.or_else(|| words.downcast_ref::<String>().cloned()).unwrap_or_default()
}
