//! A command that destroys data which it does not name asks for confirmation at a terminal, and needs `--force`
//! elsewhere.

use crate::exit::Failure;
use std::io::{BufRead, IsTerminal, Write};

/// Goes on only after a confirmation at a terminal; `warning` names the data that would be lost.
pub fn confirm(warning: &str) -> Result<(), Failure> {
    let (mut stdin, mut stderr) = (std::io::stdin().lock(), std::io::stderr());
    if !stdin.is_terminal() || !stderr.is_terminal() {
        return Err(Failure::failed(format!("{warning}; nothing was done: say --force to confirm")));
    }
    write!(stderr, "{warning}. Go on? [y/N] ")?;
    stderr.flush()?;
    let mut answer = String::new();
    stdin.read_line(&mut answer)?;
    match is_yes(&answer) {
        true => Ok(()),
        false => Err(Failure::failed("nothing was done")),
    }
}

fn is_yes(answer: &str) -> bool {
    matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_clear_yes_is_one() {
        for (answer, yes) in
            [("y\n", true), (" Yes\n", true), ("\n", false), ("", false), ("no\n", false), ("ye\n", false)]
        {
            assert_eq!(is_yes(answer), yes, "{answer:?}");
        }
    }
}
