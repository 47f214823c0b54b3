//! The key `model` of layers: the name of a model that comes with Lamina, or the path of a model file.

use lamina_block::{Env, Error, Outside, Result};
use lamina_drive::Model;
use std::path::Path;

/// The key. The file is of this host, and decides only how fast the device is: members need not agree on it.
pub(crate) const OUTSIDE: &[Outside] = &[Outside::local("model").or(&Model::NAMES)];

/// The model called `name`; if none is, the one in the file `name`, a path relative to `base`. Errors begin with the
/// name of the key, and tell the line and the key inside the file.
pub(crate) async fn load(env: &dyn Env, base: &Path, name: &str) -> Result<Model> {
    if let Some(model) = Model::named(name) {
        return Ok(model);
    }
    let path = base.join(name);
    let failed = |e: Error| {
        let message = format!(
            "model: {name:?} is no model that comes with Lamina, and cannot be read as a file: {}",
            e.message()
        );
        Error::new(e.kind(), message)
    };
    let text = env.read_text(path.clone(), Model::FILE_MAX).await.map_err(failed)?;
    Model::parse(&text).map_err(|e| Error::invalid(format!("model: {}: {e}", path.display())))
}
