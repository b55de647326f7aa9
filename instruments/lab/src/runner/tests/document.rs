//! Tests that a run's document conforms to its schema.

use serde_json::Value as Json;

use super::*;
use linerate_testing::Scratch;

static SCHEMA_TEXT: &str = include_str!("../../../tests/lab-run.schema.json");

/// Adds to `wrong` each place where `value` violates `schema`. It knows every keyword that the
/// schema uses; another keyword fails the test.
fn check(schema: &Json, value: &Json, at: &str, root: &Json, wrong: &mut Vec<String>) {
    for (keyword, said) in schema.as_object().unwrap() {
        let ok = match keyword.as_str() {
            "$schema" | "$id" | "$defs" | "title" | "description" => true,
            "type" => match said {
                Json::Array(types) => types.iter().any(|one| is(value, one.as_str().unwrap())),
                one => is(value, one.as_str().unwrap()),
            },
            "const" => said == value,
            "enum" => said.as_array().unwrap().contains(value),
            "pattern" => matches(said.as_str().unwrap(), value.as_str().unwrap_or("\n")),
            "format" => said == "date-time" && is_time(value.as_str().unwrap_or("")),
            "required" => said.as_array().unwrap().iter().all(|name| {
                let name = name.as_str().unwrap();
                value.as_object().is_none_or(|object| object.contains_key(name))
            }),
            "minItems" => {
                value.as_array().is_none_or(|list| list.len() as u64 >= said.as_u64().unwrap())
            }
            "properties" => {
                for (name, schema) in said.as_object().unwrap() {
                    if let Some(value) = value.get(name) {
                        check(schema, value, &format!("{at}/{name}"), root, wrong);
                    }
                }
                true
            }
            "additionalProperties" => others(schema, value, at, root, wrong),
            "prefixItems" => {
                let each = said.as_array().unwrap().iter().zip(value.as_array().unwrap());
                each.for_each(|(schema, value)| check(schema, value, at, root, wrong));
                true
            }
            "items" if *said == Json::Bool(false) => {
                let first = schema["prefixItems"].as_array().unwrap().len();
                value.as_array().is_none_or(|list| list.len() <= first)
            }
            "items" => {
                for (i, value) in value.as_array().into_iter().flatten().enumerate() {
                    check(said, value, &format!("{at}/{i}"), root, wrong);
                }
                true
            }
            "$ref" => {
                let schema = root.pointer(said.as_str().unwrap().trim_start_matches('#')).unwrap();
                check(schema, value, at, root, wrong);
                true
            }
            other => panic!("the schema has a keyword that this test does not know: {other}"),
        };
        if !ok {
            wrong.push(format!("{at}: {keyword} {said}"));
        }
    }
}

/// Checks the members that a schema's `properties` do not name.
fn others(schema: &Json, value: &Json, at: &str, root: &Json, wrong: &mut Vec<String>) -> bool {
    let named = |name: &str| schema.get("properties").is_some_and(|all| all.get(name).is_some());
    let rest = value.as_object().into_iter().flatten().filter(|(name, _)| !named(name));
    let mut ok = true;
    for (name, value) in rest {
        match &schema["additionalProperties"] {
            Json::Bool(allowed) => ok &= *allowed,
            schema => check(schema, value, &format!("{at}/{name}"), root, wrong),
        }
    }
    ok
}

fn is(value: &Json, name: &str) -> bool {
    match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        other => panic!("no type {other}"),
    }
}

/// Returns true if `text` matches one of the schema's two patterns: the identifier of a run or of
/// an experiment.
fn matches(pattern: &str, text: &str) -> bool {
    let name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    match pattern {
        "^[0-9TZ-]+-[a-z0-9-]+$" => text.match_indices('-').any(|(at, _)| {
            let (time, rest) = (&text[..at], &text[at + 1..]);
            let is_time = |c: char| c.is_ascii_digit() || matches!(c, 'T' | 'Z' | '-');
            !time.is_empty()
                && time.chars().all(is_time)
                && !rest.is_empty()
                && rest.chars().all(name)
        }),
        "^[a-z][a-z0-9-]*$" => {
            text.starts_with(|c: char| c.is_ascii_lowercase()) && text.chars().all(name)
        }
        other => panic!("the schema has a pattern that this test does not know: {other}"),
    }
}

fn is_time(text: &str) -> bool {
    let shape: String = text.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    shape == "0000-00-00T00:00:00Z"
}

fn wrong(document: &Json) -> Vec<String> {
    let schema: Json = serde_json::from_str(SCHEMA_TEXT).unwrap();
    let mut wrong = Vec::new();
    check(&schema, document, "", &schema, &mut wrong);
    wrong
}

/// Returns a run with every kind of content: a cell with results, one that cannot be run, rejected
/// pairs, profiles, warnings.
fn run(interrupted: Option<usize>) -> Json {
    let scratch = Scratch::new();
    let mut experiment = Experiment { profiles: true, post: Some("000".into()), ..grid() };
    told(&mut experiment, 1, "check", "root");
    let mut world = Simulated::noisy(1);
    world.admits = |number| (number % 2 == 0, number % 5 != 0);
    let request = request_in(&scratch.0, experiment);
    let mut follower = Follower { until: interrupted, ..Follower::default() };
    let run = run_in(&world, &request, &mut follower).unwrap();
    let text = std::fs::read(scratch.0.join(&run.run.id).join("run.json")).unwrap();
    serde_json::from_slice(&text).unwrap()
}

#[test]
fn a_run_is_valid_by_its_schema_whether_it_is_complete_or_not() {
    let whole = run(None);
    assert_eq!(whole["heads"]["size=small/a"]["memory_bytes"], 4096.0);
    assert_eq!(wrong(&whole), [""; 0]);
    assert_eq!(whole["cells"].as_array().unwrap().len(), 2);
    assert_eq!(whole["profiles"][0]["rows"][0]["symbol"], "skb_alloc");
    assert_eq!(whole["profiles"][0]["stacks"][0]["frames"][0], "main");
    assert_eq!(whole["cells"][0]["metrics"]["cost_ns_per_packet"]["verdict"], "better");
    assert_eq!(wrong(&run(Some(30))), [""; 0]);
}

#[test]
fn a_run_on_this_machine_is_valid_too() {
    let scratch = Scratch::new();
    let text = TOML
        .replace("scenario = \"engine\"", "scenario = \"engine\"\n[settings]\npath = \"null\"")
        .replace("50ms", "2ms");
    let experiment = Experiment::parse(&text, "grid.toml").unwrap();
    let place = Place {
        cpus: linerate_sys::thread::allowed_cpus().unwrap().into_iter().take(1).collect(),
        ..Place::default()
    };
    let request = Request { quick: true, place, ..request_in(&scratch.0, experiment) };
    let run = crate::runner::run(&request, &mut Follower::default()).unwrap();
    let cell = &run.cells[0];
    if cell.status == crate::record::Status::Unsupported {
        let told = format!("{:?}", run.warnings);
        assert!(told.contains("the kernel keeps no account of it"), "{told}");
        return eprintln!("skipped: {told}");
    }
    assert!((5..=10).contains(&cell.pairs.len()), "{} pairs", cell.pairs.len());
    assert!(cell.pairs.iter().all(|pair| pair.a.packets > 0 && pair.control.is_some()));
    assert!(run.conserved(), "{:?}", run.warnings);
    assert_eq!(wrong(&serde_json::to_value(&run).unwrap()), [""; 0]);
}

#[test]
fn schema_violations_are_found() {
    let found = |spoil: &dyn Fn(&mut Json)| {
        let mut document = run(Some(30));
        spoil(&mut document);
        wrong(&document)
    };
    let enums = found(&|d| d["verdict"] = "fine".into());
    assert!(enums[0].starts_with("/verdict: enum") || enums[0].starts_with(": "), "{enums:?}");
    assert_eq!(found(&|d| d["run"]["odd"] = 1.into()), ["/run: additionalProperties false"]);
    assert_eq!(found(&|d| d["run"]["id"] = "a b".into()).len(), 1);
    assert_eq!(found(&|d| d["run"]["seed"] = 1.5.into()), ["/run/seed: type \"integer\""]);
    assert_eq!(found(&|d| d["cells"][0]["pairs"][0]["a"]["packets"] = Json::Null).len(), 1);
    let missing = found(&|d| {
        d["cells"][0]["ledger"]["a"].as_object_mut().unwrap().remove("balanced");
    });
    assert!(missing[0].starts_with("/cells/0/ledger/a: required"), "{missing:?}");
}
