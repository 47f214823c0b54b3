//! How the format of a kind of layer is recognised on a device.

/// The first bytes of a device in a format that a kind knows.
#[derive(Clone, Copy, Debug)]
pub struct Signature {
    /// The name of the format.
    pub name: &'static str,
    /// The bytes at its start.
    pub magic: &'static [u8],
    /// Details from the first 4 KiB, or as much of them as there is: only for display, and perhaps damaged or hostile.
    pub details: fn(&[u8]) -> Vec<(&'static str, String)>,
}
