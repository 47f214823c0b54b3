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
        let flawed = crate::flaw::FLAW.get() == Some($flaw);
        #[cfg(not(test))]
        let flawed = false;
        flawed
    }};
}

pub(crate) use flawed;
