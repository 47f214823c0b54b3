use crate::testing::*;

pub fn subject() -> Subject {
    let keys = json!({ "vault": "/vault", "volume": "vm1", "host": "a" });
    Subject::layer(&Kind::of::<super::Keys>(), keys, 1)
}
