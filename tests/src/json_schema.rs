//! The part of JSON Schema 2020-12 that the OpenAPI document of `handle-gateway` uses.
//!
//! It is stricter than the standard: a keyword that is not listed here is an error, and an object
//! whose members are described has no others. An interface is described when every member is.

use regex::Regex;
use serde_json::Value as Json;

/// Keywords that say nothing about instances.
const ANNOTATIONS: [&str; 6] = ["description", "examples", "default", "format", "contentMediaType", "$ref"];
/// Keywords that [`fault`] checks.
const ASSERTIONS: [&str; 14] = [
    "type",
    "const",
    "enum",
    "required",
    "properties",
    "items",
    "anyOf",
    "oneOf",
    "pattern",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "$ref",
];

/// What the `$ref` in `json` names, or `json` itself.
///
/// # Panics
/// When it names nothing.
#[must_use]
pub fn follow<'d>(document: &'d Json, json: &'d Json) -> &'d Json {
    let Some(reference) = json["$ref"].as_str() else { return json };
    let target = reference.strip_prefix('#').and_then(|pointer| document.pointer(pointer));
    target.unwrap_or_else(|| panic!("{reference} is not in the document"))
}

/// The first keyword in `schema`, and in the schemas in it, that is not known here.
#[must_use]
pub fn unknown_keyword(schema: &Json) -> Option<String> {
    let members = schema.as_object().into_iter().flatten();
    for (keyword, value) in members {
        let within = match keyword.as_str() {
            "properties" => value.as_object().into_iter().flatten().find_map(|(_, it)| unknown_keyword(it)),
            "anyOf" | "oneOf" => value.as_array().into_iter().flatten().find_map(unknown_keyword),
            "items" => unknown_keyword(value),
            known if ANNOTATIONS.contains(&known) || ASSERTIONS.contains(&known) => None,
            unknown => Some(unknown.to_owned()),
        };
        if within.is_some() {
            return within;
        }
    }
    None
}

/// Why `instance` does not have the form that `schema` describes; `None` if it has. `place` is the
/// name of the instance in the text.
///
/// # Panics
/// When a reference or pattern in the document is malformed.
#[must_use]
pub fn fault(document: &Json, schema: &Json, instance: &Json, place: &str) -> Option<String> {
    let schema = follow(document, schema);
    if let Some(wrong) = scalar_fault(schema, instance) {
        return Some(format!("{place}: {instance} {wrong}"));
    }
    let alternatives = |keyword: &str| {
        let list = schema[keyword].as_array()?;
        let faults: Vec<_> = list.iter().map(|it| fault(document, it, instance, place)).collect();
        Some((faults.iter().filter(|fault| fault.is_none()).count(), faults))
    };
    if let Some((0, faults)) = alternatives("anyOf") {
        return Some(faults.into_iter().flatten().collect::<Vec<_>>().join("; or "));
    }
    if let Some((count, faults)) = alternatives("oneOf").filter(|(count, _)| *count != 1) {
        let faults = faults.into_iter().flatten().collect::<Vec<_>>().join("; or ");
        return Some(format!("{place}: {count} forms in place of one: {faults}"));
    }
    if let Some(items) = instance.as_array().filter(|_| !schema["items"].is_null()) {
        let mut numbered = items.iter().enumerate();
        return numbered
            .find_map(|(at, item)| fault(document, &schema["items"], item, &format!("{place}[{at}]")));
    }
    let members = instance.as_object()?;
    let required = schema["required"].as_array().into_iter().flatten().filter_map(Json::as_str);
    if let Some(missing) = required.into_iter().find(|name| !members.contains_key(*name)) {
        return Some(format!("{place}: {missing} is missing in {instance}"));
    }
    let properties = schema["properties"].as_object()?;
    members.iter().find_map(|(name, member)| match properties.get(name) {
        Some(described) => fault(document, described, member, &format!("{place}.{name}")),
        None => Some(format!("{place}: {name} is not described")),
    })
}

/// Why an instance does not comply with the keywords about instances without parts.
fn scalar_fault(schema: &Json, instance: &Json) -> Option<String> {
    let has_type = |name: &Json| match name.as_str() {
        Some("string") => instance.is_string(),
        Some("integer") => instance.is_i64() || instance.is_u64(),
        Some("boolean") => instance.is_boolean(),
        Some("array") => instance.is_array(),
        Some("object") => instance.is_object(),
        _ => false,
    };
    let is_of_type = match &schema["type"] {
        Json::Null => true,
        Json::Array(names) => names.iter().any(has_type),
        name => has_type(name),
    };
    let text_len = || instance.as_str().map(|text| text.chars().count() as u64);
    let is_between = |number: Option<i64>, least: &str, most: &str| {
        let bound = |name: &str| schema[name].as_i64();
        number.is_none_or(|number| {
            bound(least).is_none_or(|bound| number >= bound)
                && bound(most).is_none_or(|bound| number <= bound)
        })
    };
    let matches = |pattern: &str| {
        let pattern = Regex::new(pattern).unwrap_or_else(|error| panic!("{pattern}: {error}"));
        instance.as_str().is_none_or(|text| pattern.is_match(text))
    };
    match () {
        () if !is_of_type => Some(format!("is not of type {}", schema["type"])),
        () if schema.get("const").is_some_and(|known| known != instance) => {
            Some(format!("is not {}", schema["const"]))
        }
        () if schema["enum"].as_array().is_some_and(|known| !known.contains(instance)) => {
            Some(format!("is none of {}", schema["enum"]))
        }
        () if !is_between(instance.as_i64(), "minimum", "maximum") => Some("is out of bounds".to_owned()),
        () if !is_between(text_len().map(u64::cast_signed), "minLength", "maxLength") => {
            Some("is too long or too short".to_owned())
        }
        () if schema["pattern"].as_str().is_some_and(|pattern| !matches(pattern)) => {
            Some(format!("does not match {}", schema["pattern"]))
        }
        () => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn instances_have_the_form_of_their_schema() {
        let document = json!({ "schemas": { "Name": { "type": "string", "pattern": "^[a-z]+$" } } });
        let name = json!({ "$ref": "#/schemas/Name" });
        let object = json!({
            "type": "object", "required": ["name"], "properties": {
                "name": name, "count": { "type": "integer", "minimum": 1, "maximum": 3 },
                "list": { "type": "array", "items": { "enum": [1, "x"] } },
                "text": { "type": ["string", "boolean"], "minLength": 1, "maxLength": 2 },
            },
        });
        let fault = |schema: &Json, instance: Json| fault(&document, schema, &instance, "it");
        for good in [
            json!({ "name": "a" }),
            json!({ "name": "a", "count": 3, "list": [1, "x"], "text": "\u{e4}\u{e4}" }),
            json!({ "name": "a", "list": [], "text": true }),
        ] {
            assert_eq!(fault(&object, good.clone()), None, "{good}");
        }
        for (bad, place) in [
            (json!([]), "it:"),
            (json!({}), "it: name is missing"),
            (json!({ "name": "A" }), "it.name:"),
            (json!({ "name": 1 }), "it.name:"),
            (json!({ "name": "a", "count": 4 }), "it.count:"),
            (json!({ "name": "a", "count": 0 }), "it.count:"),
            (json!({ "name": "a", "count": 1.5 }), "it.count:"),
            (json!({ "name": "a", "list": [1, 2] }), "it.list[1]:"),
            (json!({ "name": "a", "text": "" }), "it.text:"),
            (json!({ "name": "a", "text": "abc" }), "it.text:"),
            (json!({ "name": "a", "other": 1 }), "it: other is not described"),
        ] {
            let text = fault(&object, bad.clone()).unwrap_or_else(|| panic!("{bad}"));
            assert!(text.starts_with(place), "{text}");
        }
        let either = json!({ "anyOf": [name, { "const": 7 }] });
        let one = json!({ "oneOf": [{ "type": "integer" }, { "const": 7 }] });
        assert_eq!((fault(&either, json!("a")), fault(&either, json!(7))), (None, None));
        assert!(fault(&either, json!("A")).is_some() && fault(&either, json!(8)).is_some());
        assert_eq!(fault(&one, json!(8)), None);
        assert!(fault(&one, json!(7)).is_some() && fault(&one, json!("a")).is_some());
    }

    #[test]
    fn keywords_without_a_check_are_found() {
        let known = json!({ "type": "object", "properties": { "a": { "items": { "minimum": 1 } } } });
        assert_eq!(unknown_keyword(&known), None);
        for unknown in [
            json!({ "uniqueItems": true }),
            json!({ "items": { "uniqueItems": true } }),
            json!({ "properties": { "a": { "anyOf": [{ "uniqueItems": true }] } } }),
        ] {
            assert_eq!(unknown_keyword(&unknown).as_deref(), Some("uniqueItems"), "{unknown}");
        }
    }
}
