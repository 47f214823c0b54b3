//! The figures of a kind of layer: the place of each in the info of a device ([`crate::Manage::info`]), and its
//! meaning.
//!
//! A declaration is the only place that names a figure: metrics, tables, schemas and the manual follow from it. A test
//! builds every kind and finds each of its figures.

use serde_json::Value;

/// A value that devices of a kind show.
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    /// The metric, if there is one: a figure only for `lamina show` has none.
    pub metric: Option<Metric>,
    /// Its place in the info of a device: a JSON pointer.
    pub at: &'static str,
    /// Its unit.
    pub unit: Unit,
    /// A description in one sentence.
    pub help: &'static str,
    /// The title of its column in `lamina show`, if it has one.
    pub column: Option<&'static str>,
    /// The figure has a meaning only while one of the figures at these places is not 0.
    pub only_if: &'static [&'static str],
    /// The figure, or an object around it, is null while there is no value.
    pub nullable: bool,
}

/// A figure as a metric.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// The name after `lamina_KIND_`: with its unit, and `_total` for a counter.
    pub name: &'static str,
    /// The value only rises while the device is open. Otherwise it is a gauge.
    pub is_counter: bool,
}

/// The unit of a figure.
#[derive(Clone, Copy, Debug)]
pub enum Unit {
    /// Things.
    Count,
    /// Bytes.
    Bytes,
    /// Bytes for each second.
    BytesPerSecond,
    /// Seconds.
    Seconds,
    /// A part of 1.
    Ratio,
    /// Pieces, each of so many bytes as the figure at this place says.
    Pieces(&'static str),
    /// No number: text.
    Text,
    /// No number: this function gives the text of a valid value.
    Made(fn(&Value) -> Option<String>),
}

impl Unit {
    /// False for units that no metric can have.
    pub const fn is_number(self) -> bool {
        !matches!(self, Unit::Text | Unit::Made(_))
    }
}

impl Figure {
    /// A metric that only rises.
    pub const fn counter(name: &'static str, at: &'static str, unit: Unit, help: &'static str) -> Figure {
        Figure { metric: Some(Metric { name, is_counter: true }), ..Figure::shown(at, unit, help) }
    }

    /// A metric that rises and falls.
    pub const fn gauge(name: &'static str, at: &'static str, unit: Unit, help: &'static str) -> Figure {
        Figure { metric: Some(Metric { name, is_counter: false }), ..Figure::shown(at, unit, help) }
    }

    /// A figure that is no metric.
    pub const fn shown(at: &'static str, unit: Unit, help: &'static str) -> Figure {
        Figure { metric: None, at, unit, help, column: None, only_if: &[], nullable: false }
    }

    /// The same with a column in `lamina show`.
    pub const fn column(self, heading: &'static str) -> Figure {
        Figure { column: Some(heading), ..self }
    }

    /// The same, which is null at times.
    pub const fn nullable(self) -> Figure {
        Figure { nullable: true, ..self }
    }

    /// The same with a meaning only while one of the figures at these places is not 0.
    pub const fn only_if(self, others: &'static [&'static str]) -> Figure {
        Figure { only_if: others, ..self }
    }

    /// True if `info` has it: a number where one is expected, or null if it may be.
    pub fn is_in(&self, info: &Value) -> bool {
        let is_right = |value: &Value| match self.unit {
            Unit::Text => value.is_string(),
            Unit::Made(of) => of(value).is_some(),
            _ => value.is_number(),
        };
        info.pointer(self.at).is_some_and(is_right) || self.nullable && is_null(info, self.at)
    }
}

/// True if the value at `at`, or an object on the way there, is null.
pub fn is_null(info: &Value, at: &str) -> bool {
    let ends = at.char_indices().filter(|(end, c)| *c == '/' && *end > 0).map(|(end, _)| end);
    ends.chain([at.len()]).any(|end| info.pointer(&at[..end]).is_some_and(Value::is_null))
}

/// A sentence about a device in `lamina show`, while there is something to say.
#[derive(Clone, Copy, Debug)]
pub struct Notice {
    /// The place in the device's info, a JSON pointer: the alert is active while the value there is neither null nor
    /// false.
    pub when: &'static str,
    /// The sentence: `{device}` stands for the name of the device, `{}` for that value, `{/place}` for the figure
    /// there.
    pub says: &'static str,
}

impl Notice {
    /// The text, and the condition.
    pub const fn new(when: &'static str, says: &'static str) -> Notice {
        Notice { when, says }
    }

    /// The sentence, in which `value` writes what is at a place.
    pub fn of(&self, device: &str, info: &Value, value: impl Fn(&str) -> String) -> Option<String> {
        info.pointer(self.when).filter(|is| !is.is_null() && **is != Value::Bool(false))?;
        let mut rest = self.says;
        let mut out = String::new();
        while let Some((before, (place, after))) =
            rest.split_once('{').and_then(|(before, rest)| Some((before, rest.split_once('}')?)))
        {
            out.push_str(before);
            match place {
                "device" => out.push_str(device),
                "" => out.push_str(&value(self.when)),
                place => out.push_str(&value(place)),
            }
            rest = after;
        }
        Some(out + rest)
    }

    /// The places that its sentence names.
    pub fn places(&self) -> impl Iterator<Item = &'static str> {
        let named = self.says.split('{').skip(1).filter_map(|rest| Some(rest.split_once('}')?.0));
        named.filter(|place| *place != "device").map(|place| if place.is_empty() { self.when } else { place })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_figure_is_a_number_where_it_is_declared_or_null_where_it_may_be() {
        let age = Figure::gauge("age_seconds", "/point/age", Unit::Seconds, "How old it is.");
        for (info, is, may_be) in [
            (json!({ "point": { "age": 4.5 } }), true, true),
            (json!({ "point": { "age": "4" } }), false, false),
            (json!({ "point": { "age": null } }), false, true),
            (json!({ "point": null }), false, true),
            (json!({ "point": {} }), false, false),
            (json!({ "pointed": null }), false, false),
            (json!({}), false, false),
        ] {
            assert_eq!((age.is_in(&info), age.nullable().is_in(&info)), (is, may_be), "{info}");
        }
        let named = Figure::shown("/policy", Unit::Text, "Which one.");
        assert!(named.is_in(&json!({ "policy": "x" })) && !named.is_in(&json!({ "policy": 1 })));
    }

    #[test]
    fn a_notice_is_said_while_there_is_something_to_say() {
        let late = Notice::new("/late", "{device} is {} late: {/age} old");
        let said = |info: Value| {
            late.of("vm1", &info, |at| info.pointer(at).map_or("?".into(), |value| value.to_string()))
        };
        assert_eq!(said(json!({ "late": true, "age": 7 })).as_deref(), Some("vm1 is true late: 7 old"));
        assert_eq!(said(json!({ "late": 0 })).as_deref(), Some("vm1 is 0 late: ? old"));
        for info in [json!({ "late": false }), json!({ "late": null }), json!({})] {
            assert_eq!(said(info), None);
        }
        assert_eq!(late.places().collect::<Vec<_>>(), ["/late", "/age"]);
    }
}
