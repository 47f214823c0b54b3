//! The secrets that a person types: passphrases of devices.
//!
//! Questions of all reactors of a process come one after the other. An answer is remembered, because some programs open
//! a hierarchy several times; a daemon forgets all answers when it serves, and asks nothing from then on: its terminal,
//! if there is one, need not be before the eyes of the person who changes the hierarchy.

use crate::helper::Helpers;
use crate::secret::guard_memory;
use crate::terminal::Terminal;
use lamina_block::{Error, ErrorKind, Occasion, Question, Result};
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use zeroize::Zeroizing;

/// The answers by [`Question::of`]; `None` if no more questions are asked.
type Answers = Option<BTreeMap<String, Zeroizing<Vec<u8>>>>;

/// Asks a person at the terminal of this process, for all reactors.
pub struct Asker {
    path: PathBuf,
    /// Locked while a person types.
    answers: Mutex<Answers>,
}

impl fmt::Debug for Asker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Asker").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Asker {
    /// Asks at the terminal that controls this process, if there is one by then.
    pub fn at_terminal() -> Arc<Asker> {
        Asker::at("/dev/tty".into())
    }

    fn at(path: PathBuf) -> Arc<Asker> {
        Arc::new(Asker { path, answers: Mutex::new(Some(BTreeMap::new())) })
    }

    /// Forgets all answers, and asks nothing from now on. Waits for the end of a question.
    pub fn close(&self) {
        *self.lock() = None;
    }

    /// The answer to `question`; errors as of [`lamina_block::Env::ask_secret`]. Blocks until the person has answered.
    pub fn answer(&self, question: &Question) -> Result<Zeroizing<Vec<u8>>> {
        self.answer_unless(question, &|| false)
    }

    /// The same on a helper thread.
    pub(crate) async fn ask(self: Arc<Self>, helpers: Rc<Helpers>, question: Question) -> Result<Vec<u8>> {
        let mut asking = Asking { asker: Arc::clone(&self), given_up: Arc::default(), answered: false };
        let given_up = Arc::clone(&asking.given_up);
        let answer =
            helpers.run(move || self.answer_unless(&question, &|| given_up.load(Ordering::Relaxed))).await;
        asking.answered = true;
        Ok(std::mem::take(&mut *answer??))
    }

    fn lock(&self) -> MutexGuard<'_, Answers> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer_unless(&self, question: &Question, given_up: &dyn Fn() -> bool) -> Result<Zeroizing<Vec<u8>>> {
        let mut answers = self.lock();
        let Some(known) = &mut *answers else {
            return Err(Error::unsupported("a daemon that serves asks for nothing at its terminal"));
        };
        match known.get(&question.of) {
            Some(answer) if question.occasion != Occasion::Wrong => return Ok(answer.clone()),
            _ => known.remove(&question.of),
        };
        if given_up() {
            return Err(Error::new(ErrorKind::Cancelled, "the question was given up"));
        }
        guard_memory();
        let terminal = Terminal::open(&self.path)?;
        let read = |prompt: &str| terminal.read(prompt, question.max, given_up);
        let of = &question.of;
        let answer = match question.occasion {
            Occasion::Needed => read(&format!("{}: ", capital(of)))?,
            Occasion::Wrong => read(&format!("Wrong. {}: ", capital(of)))?,
            Occasion::New => {
                let answer = read(&format!("New {of}: "))?;
                if *read(&format!("Once more, the {of}: "))? != *answer {
                    return Err(Error::invalid("the two answers differ"));
                }
                answer
            }
        };
        known.insert(of.clone(), answer.clone());
        Ok(answer)
    }
}

/// A question under way. Dropped without an answer, as when the process ends, it is given up, and the terminal is as
/// before when the drop returns.
struct Asking {
    asker: Arc<Asker>,
    given_up: Arc<AtomicBool>,
    answered: bool,
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.given_up.store(true, Ordering::Relaxed);
        if !self.answered {
            drop(self.asker.lock());
        }
    }
}

/// Text as a sentence begins.
fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or(String::new(), |first| first.to_uppercase().chain(chars).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::terminal::testing::pty;
    use rustix::io::{read, write};
    use std::os::fd::OwnedFd;

    /// A person at a terminal, who answers prompts with these lines; what the terminal showed, and the person's side.
    fn person(side: OwnedFd, lines: &'static [&'static str]) -> std::thread::JoinHandle<(String, OwnedFd)> {
        std::thread::spawn(move || {
            let (mut seen, mut bytes) = (String::new(), [0; 1024]);
            for line in lines {
                while !seen.ends_with(": ") {
                    let len = read(&side, &mut bytes).expect("output");
                    seen.push_str(std::str::from_utf8(&bytes[..len]).expect("text"));
                }
                seen.push('#');
                write(&side, format!("{line}\n").as_bytes()).expect("typed");
            }
            (seen, side)
        })
    }

    fn question(occasion: Occasion) -> Question {
        Question { of: "passphrase of device vault".into(), max: 512, occasion }
    }

    #[test]
    fn an_answer_is_remembered_until_it_is_wrong() {
        let (side, path, _shell) = pty();
        let (asker, person) = (Asker::at(path), person(side, &["first", "second"]));
        let answer = |occasion| asker.answer(&question(occasion)).expect("an answer").to_vec();
        assert_eq!(answer(Occasion::Needed), b"first");
        assert_eq!(answer(Occasion::Needed), b"first");
        assert_eq!(answer(Occasion::Wrong), b"second");
        assert_eq!(answer(Occasion::New), b"second");
        let prompts = "Passphrase of device vault: #\r\nWrong. Passphrase of device vault: #";
        assert_eq!(person.join().expect("a person").0, prompts);
        asker.close();
        let error = asker.answer(&question(Occasion::Needed)).expect_err("closed");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    }

    #[test]
    fn a_new_secret_is_typed_twice_alike() {
        for (lines, good) in [(&["new", "new"], true), (&["new", "now"], false)] {
            let (side, path, _shell) = pty();
            let (asker, person) = (Asker::at(path), person(side, lines));
            let answer = asker.answer(&question(Occasion::New));
            assert_eq!(answer.is_ok(), good);
            let prompts = "New passphrase of device vault: #\r\nOnce more, the passphrase of device vault: #";
            assert_eq!(person.join().expect("a person").0, prompts);
        }
    }

    #[test]
    fn without_a_terminal_there_is_nobody_to_ask() {
        let error = Asker::at("/none".into()).answer(&question(Occasion::Needed)).expect_err("no terminal");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.message().starts_with("there is no terminal to ask at"), "{error}");
    }
}
