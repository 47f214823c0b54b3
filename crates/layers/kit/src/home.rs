//! Shared by layers with a metadata store: where the store lies, and how it is opened.

use lamina_block::{Begin, Build, Bytes, Error, ErrorKind, Node, Result};
use lamina_metadata::{Options, Store};
use std::rc::Rc;

/// The least memory for a store.
const MEMORY_MIN: u64 = 1 << 20;

/// The device that has the store: the one for metadata, or the child.
pub fn of(with: &Build) -> Rc<Node> {
    with.metadata.clone().unwrap_or_else(|| with.child())
}

/// Fails if there is no room for the store of `what`: a child in use has none.
pub fn check(with: &Build, memory: Bytes, what: &str) -> Result<()> {
    if memory.0 < MEMORY_MIN {
        return Err(Error::invalid(format!("memory: {what} needs at least {}", Bytes(MEMORY_MIN))));
    }
    match with.begin {
        Begin::Adopt if with.metadata.is_none() => Err(Error::invalid(format!(
            "the child is in use, so {what} cannot lie on it: name another device with metadata = \"NAME\""
        ))),
        Begin::Adopt | Begin::Format | Begin::Open => Ok(()),
    }
}

/// The options to open a store with `memory` for pages in use.
pub fn options(memory: Bytes) -> Options {
    Options { memory: usize::try_from(memory.0).unwrap_or(usize::MAX), ..Options::default() }
}

/// The first bytes of the object `tag` of the store of a layer of `kind`. They are written last when the
/// layer is made: while they are zeroes, it was not finished.
pub async fn head<const LEN: usize>(store: &Store, tag: u64, kind: &str, with: &Build) -> Result<[u8; LEN]> {
    let mut bytes = [0; LEN];
    if let Some(id) = store.find(tag) {
        store.load(id)?.read(0, &mut bytes).await?;
    }
    match bytes.iter().any(|byte| *byte != 0) {
        true => Ok(bytes),
        false => Err(unfinished(kind, with)),
    }
}

/// The error of a store of a layer of `kind` that was not finished.
pub fn unfinished(kind: &str, with: &Build) -> Error {
    missing(kind, with, Error::new(ErrorKind::Corrupt, "the layer was not finished"))
}

/// The error of a store of a layer of `kind` that is not found: nothing, or something else, is in its place.
pub fn missing(kind: &str, with: &Build, e: Error) -> Error {
    match e.kind() {
        ErrorKind::Corrupt => {
            let message = format!(
                "there is no {kind} layer's metadata on {:?} ({e}): make it with `lamina create`",
                of(with).name()
            );
            Error::new(ErrorKind::Corrupt, message)
        }
        _ => e,
    }
}
