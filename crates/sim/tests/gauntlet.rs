//! The gauntlet on the simplest subjects.

use lamina_sim::Subject;

lamina_sim::gauntlet!(bare_disk, Subject::new("bare disk", |rig| async move { Ok(rig.disk(0)) }));
