//! `view`: shows a part of a device that has several, such as a partition or a snapshot.
//!
//! The device below decides which views there are and what each of them shows; it shares its state with the
//! view. The bytes of the view are also bytes of the device below.
//!
//! ```text
//!      0 ──── size     0 ──── size        two views, "root" and "data"
//!      └──┬──┘         └──┬──┘
//!         │  requests go  │               device below: where each of them is
//!         ▼   straight    ▼
//!      0 ─┴───────────────┴──── size      the child of the device below
//! ```
//!
//! Keys:
//! * `over`: the device that has the view.
//! * `name`: the name of the view in the device below.
//!
//! A view deliberately is no layer of its own in the path of a request: the device below gives it one, which
//! sends requests straight to that device's child.

use lamina_block::{Build, Config, Error, Growth, Made, Over, Pending, Result, Traits};
use serde::Deserialize;

/// The keys; see the module.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Keys {
    name: String,
}

impl Config for Keys {
    const KIND: &'static str = "view";
    const SUMMARY: &'static str = "a partition or a snapshot of a device";
    const CHILDREN: std::ops::RangeInclusive<usize> = 1..=1;
    const TRAITS: Traits = Traits {
        shares: true,
        growth: Growth::Never(
            "a snapshot keeps its size, and a partition is resized by a command to the device below",
        ),
        ..Traits::NONE
    };

    fn check(&self, over: &Over<'_>) -> Result<()> {
        match over.kinds {
            [below] if !below.traits.views => Err(Error::invalid(format!(
                "over: a device of kind {:?} has no views: \"partition\" and \"snapshot\" have",
                below.name
            ))),
            _ => Ok(()),
        }
    }

    fn build(self, with: Build) -> Pending<Made> {
        Box::pin(async move { with.child().view(&self.name).await })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use crate::testing::*;
    use lamina_block::{Error, Geometry, Layer, Made, Manage, Passthrough, Pending, Step};

    /// A layer with one view, "all", which shows all bytes below.
    struct Viewed(Rc<Node>);

    /// The view "all".
    struct All(Rc<Node>);

    impl Layer for Viewed {
        fn geometry(&self) -> Geometry {
            Geometry { read_only: true, ..self.0.geometry() }
        }

        fn submit(self: Rc<Self>, _: &mut Io) -> Step {
            Step::Forward(Rc::clone(&self.0))
        }

        fn passthrough(&self) -> Passthrough {
            Passthrough::to(&self.0)
        }
    }

    impl Manage for Viewed {
        fn view(self: Rc<Self>, name: String) -> Pending<Made> {
            Box::pin(async move {
                match name.as_str() {
                    "all" => Ok(Rc::new(All(Rc::clone(&self.0))) as Made),
                    _ => Err(Error::invalid(format!("name: there is only \"all\", and no {name:?}"))),
                }
            })
        }
    }

    impl Layer for All {
        fn geometry(&self) -> Geometry {
            self.0.geometry()
        }

        fn submit(self: Rc<Self>, _: &mut Io) -> Step {
            Step::Forward(Rc::clone(&self.0))
        }

        fn passthrough(&self) -> Passthrough {
            Passthrough::to(&self.0)
        }
    }

    impl Manage for All {}

    pub fn subject() -> Subject {
        Subject::new("view", |rig| async move {
            let viewed = rig.node("viewed", "viewed", Rc::new(Viewed(rig.disk(0))));
            rig.build(&Kind::of::<super::Keys>(), "top", json!({ "name": "all" }), vec![viewed]).await
        })
    }

    #[test]
    fn the_device_below_says_what_there_is() {
        let below = memory("1MiB");
        let env: Rc<dyn Env> = lamina_sim::Simulation::new(1).env();
        let viewed = Node::new("viewed", "viewed", env, Rc::new(Viewed(Rc::clone(&below))));
        let all = over("view", json!({ "name": "all" }), &[&viewed]);
        write(&all, 4096, 7, 512);
        assert_eq!(read(&below, 4096, 512), [7; 512]);
        assert_eq!(read(&viewed, 4096, 512), [7; 512]);
        assert_eq!(viewed.stats().of(OpKind::Write).completed.get(), 0, "writes go past it");
        assert!(refused("view", json!({ "name": "some" }), &[&viewed]).contains("only \"all\""));
        assert!(refused("view", json!({ "name": "all" }), &[&below]).contains("no \"all\" to view"));
    }
}
