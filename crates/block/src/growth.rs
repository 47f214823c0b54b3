//! How the devices of a kind become larger.

/// The declaration of a kind: which devices below grow first, and how its own device takes that over. Commands are
/// those of the kind ([`crate::Verb`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Growth {
    /// At once, when the device below has grown: the first one.
    First,
    /// At once, when all devices below have grown.
    Each,
    /// At once, when the last device below has grown.
    Last,
    /// By this command, when all devices below have grown.
    EachThen(&'static str),
    /// A volume that takes space from the first device below only as it is written: by the command `resize` with a
    /// size; this command takes over space by which the device below has grown.
    Thin(&'static str),
    /// By the command `resize` with a size: nothing is below.
    Sized,
    /// By this command, when its place outside has grown, such as an image of Ceph.
    Outside(&'static str),
    /// Never; with a sentence that says what to do instead.
    Never(&'static str),
}
