//! How the format of a kind of layer is recognised on a device.

/// What the first bytes of a device are whose format a kind knows.
#[derive(Clone, Copy, Debug)]
pub struct Signature {
    /// What it is called.
    pub name: &'static str,
    /// The bytes that it begins with.
    pub magic: &'static [u8],
    /// What the first 4 KiB say besides, or as much of them as there is: only looked at, and perhaps damaged or hostile.
    pub details: fn(&[u8]) -> Vec<(&'static str, String)>,
}
