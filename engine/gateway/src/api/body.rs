//! Bodies of the API: JSON, with spaces or as a call of a function where the client asks for that.

use handle_console::parameters::Parameters;
use handle_proto::json::{Json, write_string, write_value};
use handle_proto::{ResponseCode, Value};
use hyper::StatusCode;
use std::fmt::Write as _;

/// Longest name of a function that a body may be a call of.
const CALLBACK_LEN_MAX: usize = 128;

/// How bodies are written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApiFormat {
    /// Whether with line ends and two blanks for each level.
    pub pretty: bool,
    /// The function that the body calls.
    pub callback: Option<String>,
}

/// The name of the function is not one that is safe to call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidCallback;

impl ApiFormat {
    /// The format that the parameters ask for.
    ///
    /// # Errors
    /// When the name of the function is empty, longer than 128 bytes, or has other characters than
    /// those of identifiers and dots.
    pub fn of(parameters: &Parameters<'_>) -> Result<Self, InvalidCallback> {
        let pretty = parameters.flag("pretty").unwrap_or_default();
        let callback = parameters.first("callback").map(str::to_owned);
        if callback.as_deref().is_some_and(|name| !is_function(name)) {
            return Err(InvalidCallback);
        }
        Ok(Self { pretty, callback })
    }
}

fn is_function(name: &str) -> bool {
    let is_inner = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'_' | b'$' | b'.');
    let is_first = |c: &u8| c.is_ascii_alphabetic() || matches!(c, b'_' | b'$');
    name.len() <= CALLBACK_LEN_MAX
        && name.as_bytes().first().is_some_and(is_first)
        && name.bytes().all(is_inner)
}

/// The JSON of an answer, as compact text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiBody(String);

impl ApiBody {
    /// Values of a handle. Members are in the order of deployed servers.
    #[must_use]
    pub fn values<'v>(code: ResponseCode, handle: &str, values: impl Iterator<Item = Value<'v>>) -> Self {
        let mut text = String::with_capacity(512);
        let _ = write!(text, "{{\"responseCode\":{}", code.0);
        let is_success = code == ResponseCode::SUCCESS;
        if is_success {
            write_member("handle", handle, &mut text);
        }
        text.push_str(",\"values\":[");
        for (at, value) in values.enumerate() {
            if at > 0 {
                text.push(',');
            }
            write_value(&value, &mut text);
        }
        text.push(']');
        if !is_success {
            write_member("handle", handle, &mut text);
        }
        text.push('}');
        Self(text)
    }

    /// A code, with a sentence and the handle that it is about where there are any.
    #[must_use]
    pub fn failure(code: ResponseCode, message: Option<&str>, handle: Option<&str>) -> Self {
        let mut text = format!("{{\"responseCode\":{}", code.0);
        for (name, member) in [("message", message), ("handle", handle)] {
            if let Some(member) = member {
                write_member(name, member, &mut text);
            }
        }
        text.push('}');
        Self(text)
    }

    /// A body that is a tree.
    #[must_use]
    pub fn of(json: &Json) -> Self {
        Self(handle_proto::json::text(json))
    }

    /// The text of the same object with the member `status` in front.
    #[must_use]
    pub fn with_status(&self, status: StatusCode) -> String {
        format!("{{\"status\":{},{}", status.as_u16(), self.0.get(1..).unwrap_or_default())
    }

    /// A body whose text is known.
    pub(super) fn of_text(text: String) -> Self {
        Self(text)
    }

    /// The JSON.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.0.into_bytes()
    }

    /// The text of the same object with the member `line` in front, as a line.
    #[must_use]
    pub fn with_line(&self, number: u32) -> String {
        format!("{{\"line\":{number},{}\n", self.0.get(1..).unwrap_or_default())
    }

    pub(super) fn formatted(self, format: &ApiFormat) -> String {
        let text = if format.pretty { pretty(self.0) } else { self.0 };
        match &format.callback {
            Some(function) => format!("{function}({text});"),
            None => text,
        }
    }
}

fn write_member(name: &str, member: &str, out: &mut String) {
    out.push_str(",\"");
    out.push_str(name);
    out.push_str("\":");
    write_string(member, out);
}

/// The same JSON with line ends.
fn pretty(text: String) -> String {
    let json = serde_json::from_str::<Json>(&text).and_then(|json| serde_json::to_string_pretty(&json));
    // Both characters can occur only inside strings.
    json.map_or(text, |text| text.replace('\u{2028}', "\\u2028").replace('\u{2029}', "\\u2029"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_called_by_safe_names_only() {
        let of = |query: &str| ApiFormat::of(&Parameters::parse(query));
        for good in ["f", "$", "_a1", "jQuery.cb_12.x"] {
            let format = of(&format!("callback={good}")).unwrap();
            let body = ApiBody::failure(ResponseCode::HANDLE_NOT_FOUND, None, Some("a/b"));
            let text = body.formatted(&format);
            assert_eq!(text, format!("{good}({{\"responseCode\":100,\"handle\":\"a/b\"}});"));
        }
        for bad in ["", "1a", ".a", "a(b)", "a;b", "a b", "a-b", "\u{e9}", &"a".repeat(129)] {
            assert_eq!(of(&format!("callback={bad}")), Err(InvalidCallback), "{bad}");
        }
    }

    #[test]
    fn members_are_in_the_order_of_deployed_servers() {
        let values =
            ApiBody::values(ResponseCode::SUCCESS, "a/\"", [Value::new(1, b"URL", b"x")].into_iter());
        let data = r#"{"index":1,"type":"URL","data":{"format":"string","value":"x"},"ttl":86400}"#;
        assert_eq!(values.0, format!(r#"{{"responseCode":1,"handle":"a/\"","values":[{data}]}}"#));
        let none = ApiBody::values(ResponseCode::VALUES_NOT_FOUND, "a/b", [].into_iter());
        assert_eq!(none.0, r#"{"responseCode":200,"values":[],"handle":"a/b"}"#);
        let format = ApiFormat { pretty: true, callback: None };
        assert_eq!(
            none.formatted(&format),
            "{\n  \"responseCode\": 200,\n  \"values\": [],\n  \"handle\": \"a/b\"\n}"
        );
    }
}
