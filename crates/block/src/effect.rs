//! What a command does besides its answer, and what those above its device say to that.

use crate::Pending;

/// What becomes of the bytes that are read from a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fate {
    /// They stay.
    #[default]
    Stay,
    /// They are kept as they are at this moment: what a layer above holds back has to be there.
    Captured,
    /// Others are read afterwards, or there are fewer: nothing that a layer above remembers of them is true any more.
    Replaced,
}

/// What a command does that others have to know before it is carried out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effect {
    /// What becomes of the bytes of the device.
    pub bytes: Fate,
    /// It is this view of the device alone; otherwise all that it shows but for views of what was kept.
    pub view: Option<String>,
    /// What is lost with it that the command does not name, in words: it is carried out only with the argument `force`.
    pub loses: Option<String>,
}

impl Effect {
    /// The bytes are kept as they are.
    pub fn captures() -> Effect {
        Effect { bytes: Fate::Captured, ..Effect::default() }
    }

    /// Others are read afterwards, and `loses` is lost.
    pub fn replaces(loses: impl Into<String>) -> Effect {
        Effect { bytes: Fate::Replaced, view: None, loses: Some(loses.into()) }
    }

    /// The same, of one view.
    pub fn of_view(self, name: &str) -> Effect {
        Effect { view: Some(name.to_owned()), ..self }
    }
}

/// What a layer says to an [`Effect`] on a device that it stands on.
pub enum Consent {
    /// What it shows stays as it is: nobody above it has to be asked.
    Untouched,
    /// It remembers nothing of what is below, and who is above it decides.
    Agrees,
    /// It agrees when it has made ready. The first is awaited while requests still pass, so that little is left for the
    /// second, while the device is held and flushed. What has to be so after a crash is durable when the second returns.
    Prepares(Pending, Pending),
    /// It does not agree, and says why, and what can be done.
    Refuses(String),
}
