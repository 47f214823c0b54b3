use crate::testing::*;

pub fn subject() -> Subject {
    Subject::layer(&Kind::of::<super::Keys>(), json!({ "extent": "4KiB", "size": "1MiB" }), 1)
        .disks_of(2 << 20)
}
