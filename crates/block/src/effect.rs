//! The effects of a command, and the consent of devices above.

use crate::Pending;

/// The effect on the bytes of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fate {
    /// They stay.
    #[default]
    Stay,
    /// The bytes are kept as they are at this moment: a layer above has to write back its data first.
    Captured,
    /// Others are read afterwards, or there are fewer: nothing that a layer above remembers of them is true any more.
    Replaced,
}

/// The effects of a command that others have to know before it is carried out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effect {
    /// The effect on the bytes of the device.
    pub bytes: Fate,
    /// Only this view of the device is affected; otherwise all data of the device except views of earlier states.
    pub view: Option<String>,
    /// The data that is lost and that the command does not name, as text: the command needs the argument `force`.
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

/// A layer's answer to an [`Effect`] on a device below.
pub enum Consent {
    /// The layer's own data does not change: devices above need not be asked.
    Untouched,
    /// The layer has no state about data below, and the devices above decide.
    Agrees,
    /// The layer agrees after a preparation. The first future is awaited while requests still pass, so that little is
    /// left for the second, while the device is quiesced and flushed. State that must survive a crash is durable when
    /// the second completes.
    Prepares(Pending, Pending),
    /// The layer does not agree; the error has the reason and the remedy.
    Refuses(String),
}
