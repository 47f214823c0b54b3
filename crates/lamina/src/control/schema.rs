//! The parts of the OpenAPI document that come from tables: the commands of every kind of layer, `KIND.COMMAND`, and
//! its figures, `KIND.info`; and the classes of failure with their statuses.

use crate::api::{Arg, ArgType, Verb};
use crate::class;
use lamina_block::{Figure, Kind, Unit};
use std::collections::BTreeMap;
use utoipa::openapi::schema::{AdditionalProperties, AnyOfBuilder, ObjectBuilder, Schema, SchemaType, Type};
use utoipa::openapi::{Content, OneOfBuilder, OpenApi, Ref, RefOr, ResponseBuilder};

/// The schema of all commands.
const COMMAND: &str = "Command";
/// The schema of a device.
const DEVICE: &str = "Device";
/// Where commands are sent to.
const PATH: &str = "/v1/devices/{name}/control";

/// Adds what these kinds declare, and the classes of failure.
pub fn add(document: &mut OpenApi, kinds: &[Kind]) {
    add_commands(document, kinds);
    add_figures(document, kinds);
    add_problems(document);
}

/// Adds the schema of every command, and names them as the possible commands to a device.
fn add_commands(document: &mut OpenApi, kinds: &[Kind]) {
    let Some(components) = document.components.as_mut() else { return };
    let mut any = AnyOfBuilder::new().description(Some("A command of one of the kinds of layers"));
    for kind in kinds {
        for verb in kind.traits.verbs.iter().map(Verb::from) {
            let name = format!("{}.{}", kind.name, verb.name);
            any = any.item(Ref::from_schema_name(&name));
            components.schemas.insert(name, command(kind.name, &verb));
        }
    }
    components.schemas.insert(COMMAND.into(), Schema::from(any.build()).into());
    let control = document.paths.paths.get_mut(PATH).and_then(|path| path.post.as_mut());
    let body = control.and_then(|control| control.request_body.as_mut());
    let Some(RefOr::T(body)) = body else { return };
    for content in body.content.values_mut() {
        if let RefOr::T(content) = content {
            content.schema = Some(Ref::from_schema_name(COMMAND).into());
        }
    }
}

/// Says what classes a `Problem` may be of, and with which statuses the requests that do something can fail.
fn add_problems(document: &mut OpenApi) {
    let problem = document.components.as_mut().and_then(|all| all.schemas.get_mut("Problem"));
    if let Some(RefOr::T(Schema::Object(problem))) = problem
        && let Some(RefOr::T(Schema::Object(kind))) = problem.properties.get_mut("kind")
    {
        kind.enum_values = Some(class::ALL.iter().map(|class| class.name.into()).collect());
    }
    let posts = document.paths.paths.values_mut().filter_map(|path| path.post.as_mut());
    for post in posts {
        for status in class::ALL.iter().map(|class| class.status) {
            let same = class::ALL.iter().filter(|class| class.status == status);
            let said: Vec<String> =
                same.map(|class| format!("`{}`: {}", class.name, class.meaning)).collect();
            let answer = ResponseBuilder::new()
                .description(said.join("; "))
                .content("application/json", Content::new(Some(Ref::from_schema_name("Problem"))));
            post.responses.responses.insert(status.to_string(), answer.build().into());
        }
    }
}

/// Adds what the devices of each kind show, and says that a device shows this, or something else.
fn add_figures(document: &mut OpenApi, kinds: &[Kind]) {
    let Some(components) = document.components.as_mut() else { return };
    let text = "State that the layer shows, if any: its figures, if it has some, among others.";
    let mut any = AnyOfBuilder::new().description(Some(text));
    for kind in kinds.iter().filter(|kind| !kind.traits.figures.is_empty()) {
        let name = format!("{}.info", kind.name);
        any = any.item(Ref::from_schema_name(&name));
        let figures: Vec<_> = kind.traits.figures.iter().map(|figure| (&figure.at[1..], figure)).collect();
        let text = format!("The figures of a device of type `{}`", kind.name);
        components.schemas.insert(name, object(&figures).description(Some(text)).build().into());
    }
    let any = any.item(ObjectBuilder::new().schema_type(SchemaType::AnyValue).build()).build();
    if let Some(RefOr::T(Schema::Object(device))) = components.schemas.get_mut(DEVICE) {
        device.properties.insert("info".into(), Schema::from(any).into());
    }
}

/// An object with these figures, each at its place: figures whose places begin with the same word are in an object in
/// it.
fn object(figures: &[(&str, &Figure)]) -> ObjectBuilder {
    let mut inside: BTreeMap<&str, Vec<(&str, &Figure)>> = BTreeMap::new();
    for (at, figure) in figures {
        let (first, rest) = at.split_once('/').unwrap_or((at, ""));
        inside.entry(first).or_default().push((rest, figure));
    }
    let mut whole = ObjectBuilder::new();
    for (name, figures) in inside {
        let schema = match figures[..] {
            [("", figure)] => value(figure),
            _ => {
                let can_be_null = figures.iter().all(|(_, figure)| figure.nullable);
                object(&figures).schema_type(or_null(Type::Object, can_be_null))
            }
        };
        whole = whole.property(name, schema.build());
    }
    whole
}

fn value(figure: &Figure) -> ObjectBuilder {
    let is = match figure.unit {
        Unit::Made(_) => SchemaType::AnyValue,
        Unit::Text => or_null(Type::String, figure.nullable),
        Unit::Count | Unit::Bytes | Unit::Pieces(_) => or_null(Type::Integer, figure.nullable),
        Unit::BytesPerSecond | Unit::Seconds | Unit::Ratio => or_null(Type::Number, figure.nullable),
    };
    ObjectBuilder::new().schema_type(is).description(Some(figure.help))
}

fn or_null(is: Type, can_be_null: bool) -> SchemaType {
    if can_be_null { SchemaType::Array(vec![is, Type::Null]) } else { SchemaType::Type(is) }
}

fn command(kind: &str, verb: &Verb) -> RefOr<Schema> {
    let name = ObjectBuilder::new()
        .schema_type(SchemaType::Type(Type::String))
        .enum_values(Some([verb.name.as_str()]));
    let mut args = ObjectBuilder::new().additional_properties(Some(AdditionalProperties::FreeForm(false)));
    for arg in &verb.args {
        args = args.property(&arg.name, argument(arg));
        if arg.required {
            args = args.required(&arg.name);
        }
    }
    let mut whole = ObjectBuilder::new()
        .description(Some(format!("A device of type `{kind}`: {}", verb.summary)))
        .property("name", name)
        .property("args", args)
        .required("name");
    if verb.args.iter().any(|arg| arg.required) {
        whole = whole.required("args");
    }
    Schema::from(whole.build()).into()
}

fn argument(arg: &Arg) -> RefOr<Schema> {
    let of = |is: Type| ObjectBuilder::new().schema_type(SchemaType::Type(is));
    let described = |object: ObjectBuilder| Schema::from(object.description(Some(&arg.summary)).build());
    match arg.is {
        ArgType::Text | ArgType::Time | ArgType::Secret => described(of(Type::String)),
        ArgType::Count => described(of(Type::Integer).minimum(Some(0))),
        ArgType::Flag => described(of(Type::Boolean)),
        ArgType::Json => described(ObjectBuilder::new().schema_type(SchemaType::AnyValue)),
        ArgType::Size => {
            let number = of(Type::Integer).minimum(Some(0)).build();
            let text = of(Type::String).examples(["64MiB"]).build();
            let either = OneOfBuilder::new().item(number).item(text).description(Some(&arg.summary));
            Schema::from(either.build())
        }
    }
    .into()
}
